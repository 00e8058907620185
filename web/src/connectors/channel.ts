/** What is sent through a notebook's channel, and what comes back. */
export interface Ask {
  id: string;
  ask: string;
}
export interface Reply {
  id: string;
  status: number;
  body: ArrayBuffer;
}

/** A notebook's own channel, which carries messages both ways: finds to each question its answer. */
export class Channel {
  private readonly waiting = new Map<string, (reply: Reply) => void>();
  private asked = 0;

  constructor(private readonly send: (ask: Ask) => void) {}

  receive(reply: Reply): void {
    this.waiting.get(reply.id)?.(reply);
    this.waiting.delete(reply.id);
  }

  protected say(ask: string, signal?: AbortSignal): Promise<Reply> {
    this.asked += 1;
    const id = String(this.asked);
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      this.waiting.set(id, resolve);
      signal?.addEventListener("abort", () => {
        this.waiting.delete(id);
        reject(signal.reason);
      });
      this.send({ id, ask });
    });
  }
}
