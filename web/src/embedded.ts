/** The page as one file: an exported run, which has its data in itself, or a notebook's output. */
import type { Reply } from "./connectors/channel";
import { OverComm } from "./connectors/overComm";
import { filed } from "./connectors/overFile";
import { start } from "./start";
import { OwnAddress } from "./state/address";

/** What the notebook's side says: first where to begin, then answers, and where to go. */
type Told = { place: string } | Reply;

async function main(): Promise<void> {
  const file = await filed(document);
  if (!file) return addEventListener("message", listen);
  if (!location.hash) history.replaceState(null, "", file.contents.place);
  start(file);
}

function listen({ data, ports: [port] }: MessageEvent<{ backlight?: string }>): void {
  if (data.backlight === undefined || !port) return;
  removeEventListener("message", listen);
  const transport = new OverComm((ask) => port.postMessage(ask));
  const address = new OwnAddress(data.backlight, (place) => port.postMessage({ place }));
  port.onmessage = ({ data: told }: MessageEvent<Told>) => {
    if ("place" in told) address.go(told.place);
    else transport.receive(told);
  };
  start(transport, address);
}

void main();
