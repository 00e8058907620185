import type { Question, WayToLab } from "./asking";
import { FrameReader, type Message } from "./frames";

/** The status of a part of an answer that another one follows (`laboratory/channel.py`). */
const MORE = 206;

export interface Ask {
  id: string;
  ask: string;
}
export interface Reply {
  id: string;
  status: number;
  body: ArrayBuffer;
}

/** The way to the model through a notebook's own channel: each part of an answer is asked for. */
export class LabOverComm implements WayToLab {
  private readonly waiting = new Map<string, (reply: Reply) => void>();
  private said = 0;
  private asked = 0;

  constructor(private readonly send: (ask: Ask) => void) {}

  receive(reply: Reply): void {
    this.waiting.get(reply.id)?.(reply);
    this.waiting.delete(reply.id);
  }

  async ask(question: Question, onMessage: (message: Message) => void, signal?: AbortSignal) {
    this.asked += 1;
    const number = this.asked;
    const frames = new FrameReader();
    let part: object = { number, question };
    for (;;) {
      const { status, body } = await this.say(part);
      if (signal?.aborted) {
        if (status === MORE) void this.say({ number, cancel: true });
        throw signal.reason;
      }
      for (const message of frames.add(new Uint8Array(body))) onMessage(message);
      if (status !== MORE) return;
      part = { number };
    }
  }

  private say(what: object): Promise<Reply> {
    this.said += 1;
    const id = String(this.said);
    return new Promise((resolve) => {
      this.waiting.set(id, resolve);
      this.send({ id, ask: JSON.stringify(what) });
    });
  }
}
