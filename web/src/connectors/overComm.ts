import {
  addressOf,
  errorIn,
  type FrameSource,
  type Query,
  type Transport,
  type Watcher,
} from "./transport";

const LIVE_MS = 1000;
const QUIET_MS = 15_000;
/** Asked so long ago, a question says that nobody answers: the kernel may be busy, or gone. */
const PATIENCE_MS = 5000;

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

/** A notebook's own channel. The kernel answers; nothing is sent over the network by the page. */
export class OverComm implements Transport {
  private readonly waiting = new Map<string, (reply: Reply) => void>();
  private asked = 0;

  constructor(private readonly send: (ask: Ask) => void) {}

  receive(reply: Reply): void {
    this.waiting.get(reply.id)?.(reply);
    this.waiting.delete(reply.id);
  }

  async fetch(path: string, query: Query, signal?: AbortSignal): Promise<ArrayBuffer> {
    const { status, body } = await this.ask(addressOf(path, query), signal);
    if (status !== 200) throw new Error(errorIn(new TextDecoder().decode(body), status));
    return body;
  }

  async frame(path: string): Promise<FrameSource> {
    return { srcdoc: new TextDecoder().decode(await this.fetch(path, {})) };
  }

  /** Asks again and again, as the kernel hears only what is asked; seldom where nothing is live. */
  watch<T>(path: string, { onChange, onConnection }: Watcher<T>): () => void {
    let timer = 0;
    let isStopped = false;
    let known = "";
    const look = async () => {
      if (document.hidden) return again(LIVE_MS);
      const patience = window.setTimeout(() => onConnection(false), PATIENCE_MS);
      try {
        const text = new TextDecoder().decode(await this.fetch(path, {}));
        clearTimeout(patience);
        if (isStopped) return;
        onConnection(true);
        if (timeless(text) !== timeless(known)) onChange(JSON.parse(text) as T);
        known = text;
        again(text.includes('"status":"live"') ? LIVE_MS : QUIET_MS);
      } catch {
        clearTimeout(patience);
        onConnection(false);
        again(QUIET_MS);
      }
    };
    const again = (ms: number) => {
      if (!isStopped) timer = window.setTimeout(look, ms);
    };
    void look();
    return () => {
      isStopped = true;
      clearTimeout(timer);
    };
  }

  private ask(address: string, signal?: AbortSignal): Promise<Reply> {
    this.asked += 1;
    const id = String(this.asked);
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      this.waiting.set(id, resolve);
      signal?.addEventListener("abort", () => {
        this.waiting.delete(id);
        reject(signal.reason);
      });
      this.send({ id, ask: address });
    });
  }
}

/** A state without its age, which changes by itself. */
function timeless(text: string): string {
  return text.replaceAll(/"age_secs":[^,}]*/g, "");
}
