import { mount } from "svelte";
import App from "./App.svelte";
import { HttpConnector } from "./connectors/http";
import { clock } from "./state/clock.svelte";
import { selection } from "./state/selection.svelte";
import { theme } from "./state/theme.svelte";
import "./app.css";

theme.start();
clock.start();
selection.start();
mount(App, {
  target: document.getElementById("app")!,
  props: { connector: new HttpConnector() },
});
