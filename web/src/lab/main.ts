import { mount } from "svelte";
import { theme } from "../state/theme.svelte";
import { LabOverHttp } from "./asking";
import LabApp from "./LabApp.svelte";
import "../app.css";

theme.start();
/** In the viewer, the address names the run whose recorded flows are shown. */
const run = new URLSearchParams(location.search).get("run");
const path = run?.split("/").map(encodeURIComponent).join("/");
const way = new LabOverHttp(path ? `api/runs/${path}/lab` : undefined);
mount(LabApp, { target: document.getElementById("app")!, props: { way } });
