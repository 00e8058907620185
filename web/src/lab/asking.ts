import { errorIn } from "../connectors/transport";
import { FrameReader, type Message } from "./frames";

export type Question = { method: string } & Record<string, unknown>;

/** The way to the model: over HTTP, or through a notebook's own channel. */
export interface WayToLab {
  /** Calls back with each message of the answer, as it comes. */
  ask(
    question: Question,
    onMessage: (message: Message) => void,
    signal?: AbortSignal,
  ): Promise<void>;
}

export class LabOverHttp implements WayToLab {
  constructor(private readonly address = "api/lab") {}

  async ask(question: Question, onMessage: (message: Message) => void, signal?: AbortSignal) {
    const response = await fetch(this.address, {
      method: "POST",
      headers: { "x-backlight": "lab", "content-type": "application/json" },
      body: JSON.stringify(question),
      signal,
    });
    if (!response.ok) throw new Error(errorIn(await response.text(), response.status));
    const frames = new FrameReader();
    const reader = response.body!.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const message of frames.add(value)) onMessage(message);
    }
  }
}
