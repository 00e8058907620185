/** The lab's page as one file, in a notebook's output. */
import { mount } from "svelte";
import type { Reply } from "./connectors/channel";
import LabApp from "./lab/LabApp.svelte";
import { LabOverComm } from "./lab/overComm";
import { theme } from "./state/theme.svelte";
import "./app.css";

function listen({ data, ports: [port] }: MessageEvent<{ backlight?: string }>): void {
  if (data.backlight === undefined || !port) return;
  removeEventListener("message", listen);
  const way = new LabOverComm((ask) => port.postMessage(ask));
  port.onmessage = ({ data: reply }: MessageEvent<Reply>) => {
    if ("id" in reply) way.receive(reply);
  };
  theme.start();
  mount(LabApp, { target: document.getElementById("app")!, props: { way } });
}

addEventListener("message", listen);
