import { expect, test } from "vitest";
import type { Ask } from "../connectors/channel";
import type { Message } from "./frames";
import { LabOverComm } from "./overComm";

function frame(event: string): Uint8Array {
  const text = new TextEncoder().encode(JSON.stringify({ event, arrays: [] }).padEnd(64));
  const bytes = new Uint8Array(8 + text.length);
  new DataView(bytes.buffer).setUint32(0, text.length, true);
  bytes.set(text, 8);
  return bytes;
}

/** A kernel that answers in parts of one message, once it is told to. */
function talk(events: string[]) {
  const heard: { number: number; question?: object; cancel?: boolean }[] = [];
  const asks: Ask[] = [];
  const way = new LabOverComm((ask) => {
    heard.push(JSON.parse(ask.ask));
    asks.push(ask);
  });
  const answer = async () => {
    const { id } = asks.shift()!;
    const next = events.shift();
    const body = (next ? frame(next).buffer : new ArrayBuffer(0)) as ArrayBuffer;
    way.receive({ id, status: events.length > 0 ? 206 : 200, body });
    await Promise.resolve();
    await new Promise((resolve) => setTimeout(resolve));
  };
  return { way, heard, answer };
}

test("each part of an answer is asked for", async () => {
  const { way, heard, answer } = talk(["layers", "done"]);
  const messages: Message[] = [];
  const asked = way.ask({ method: "picture" }, (message) => messages.push(message));
  await answer();
  await answer();
  await asked;
  expect(messages.map(({ header }) => header.event)).toEqual(["layers", "done"]);
  expect(heard).toEqual([{ number: 1, question: { method: "picture" } }, { number: 1 }]);
});

test("a question that is withdrawn is cancelled in the kernel", async () => {
  const { way, heard, answer } = talk(["layers", "progress", "done"]);
  const stop = new AbortController();
  const asked = way.ask({ method: "picture" }, () => stop.abort(), stop.signal);
  const refused = expect(asked).rejects.toThrow();
  await answer();
  await answer();
  await refused;
  expect(heard.at(-1)).toEqual({ number: 1, cancel: true });
});
