import { mount } from "svelte";
import { theme } from "../state/theme.svelte";
import { LabOverHttp } from "./asking";
import LabApp from "./LabApp.svelte";
import "../app.css";

theme.start();
mount(LabApp, { target: document.getElementById("app")!, props: { way: new LabOverHttp() } });
