import { Channel } from "../connectors/channel";
import type { Question, WayToLab } from "./asking";
import { FrameReader, type Message } from "./frames";

/** The status of a part of an answer that another one follows (`laboratory/channel.py`). */
const MORE = 206;

/** The way to the model through a notebook's own channel: each part of an answer is asked for. */
export class LabOverComm extends Channel implements WayToLab {
  private questions = 0;

  async ask(question: Question, onMessage: (message: Message) => void, signal?: AbortSignal) {
    this.questions += 1;
    const number = this.questions;
    const frames = new FrameReader();
    let part: object = { number, question };
    for (;;) {
      const { status, body } = await this.say(JSON.stringify(part));
      if (signal?.aborted) {
        if (status === MORE) void this.say(JSON.stringify({ number, cancel: true }));
        throw signal.reason;
      }
      for (const message of frames.add(new Uint8Array(body))) onMessage(message);
      if (status !== MORE) return;
      part = { number };
    }
  }
}
