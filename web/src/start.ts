import { mount } from "svelte";
import App from "./App.svelte";
import { Client } from "./connectors/client";
import type { Transport } from "./connectors/transport";
import type { Address } from "./state/address";
import { clock } from "./state/clock.svelte";
import { selection } from "./state/selection.svelte";
import { theme } from "./state/theme.svelte";
import "./app.css";

/** Shows the page in this document. */
export function start(transport: Transport, address?: Address): void {
  theme.start();
  clock.start();
  selection.start(address);
  mount(App, {
    target: document.getElementById("app")!,
    props: { connector: new Client(transport) },
  });
}
