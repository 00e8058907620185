import { Channel } from "./channel";
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

/** A notebook's own channel. The kernel answers; nothing is sent over the network by the page. */
export class OverComm extends Channel implements Transport {
  async fetch(path: string, query: Query, signal?: AbortSignal): Promise<ArrayBuffer> {
    const { status, body } = await this.say(addressOf(path, query), signal);
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
}

/** A state without its age, which changes by itself. */
function timeless(text: string): string {
  return text.replaceAll(/"age_secs":[^,}]*/g, "");
}
