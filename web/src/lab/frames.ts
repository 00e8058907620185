/** Messages of the lab: a JSON header and the arrays that it names (`laboratory/frames.py`). */
export interface Message {
  // biome-ignore lint/suspicious/noExplicitAny: what a header holds depends on its event.
  header: Record<string, any> & { event: string };
  arrays: (Float32Array | Int32Array)[];
}

interface Place {
  at: number;
  length: number;
  type: "f" | "i";
}

/** Takes bytes as they arrive, and gives back each message once it is whole. */
export class FrameReader {
  private held = new Uint8Array(0);

  add(bytes: Uint8Array): Message[] {
    const joined = new Uint8Array(this.held.length + bytes.length);
    joined.set(this.held);
    joined.set(bytes, this.held.length);
    const found: Message[] = [];
    let at = 0;
    while (joined.length - at >= 8) {
      const sizes = new DataView(joined.buffer, at, 8);
      const header = sizes.getUint32(0, true);
      const body = sizes.getUint32(4, true);
      if (joined.length - at < 8 + header + body) break;
      const start = at + 8 + header;
      const text = new TextDecoder().decode(joined.subarray(at + 8, start));
      found.push(read(text, joined.slice(start, start + body).buffer));
      at = start + body;
    }
    this.held = joined.slice(at);
    return found;
  }
}

function read(text: string, body: ArrayBuffer): Message {
  const { arrays, ...header } = JSON.parse(text) as Message["header"] & { arrays: Place[] };
  return {
    header: header as Message["header"],
    arrays: arrays.map(({ at, length, type }) =>
      type === "f" ? new Float32Array(body, at, length) : new Int32Array(body, at, length),
    ),
  };
}
