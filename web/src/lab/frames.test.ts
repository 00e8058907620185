import { expect, test } from "vitest";
import { FrameReader } from "./frames";

function frame(header: object, body: ArrayBuffer): Uint8Array {
  const text = new TextEncoder().encode(JSON.stringify(header).padEnd(96));
  const bytes = new Uint8Array(8 + text.length + body.byteLength);
  new DataView(bytes.buffer).setUint32(0, text.length, true);
  new DataView(bytes.buffer).setUint32(4, body.byteLength, true);
  bytes.set(text, 8);
  bytes.set(new Uint8Array(body), 8 + text.length);
  return bytes;
}

test("messages are whole, however their bytes arrive", () => {
  const arrays = [
    { at: 0, length: 2, type: "f" },
    { at: 8, length: 1, type: "i" },
  ];
  const body = new ArrayBuffer(12);
  new Float32Array(body, 0, 2).set([1.5, -2]);
  new Int32Array(body, 8, 1).set([7]);
  const bytes = frame({ event: "links", arrays }, body);
  const reader = new FrameReader();
  expect(reader.add(bytes.subarray(0, 50))).toEqual([]);
  const [message] = reader.add(bytes.subarray(50));
  expect(message!.header).toEqual({ event: "links" });
  expect(Array.from(message!.arrays[0]!)).toEqual([1.5, -2]);
  expect(Array.from(message!.arrays[1]!)).toEqual([7]);
});
