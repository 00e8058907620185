import { AGAIN_MS, Unreachable } from "../connectors/transport";

/** How long something may take before the page says that it is being loaded. */
const PATIENCE_MS = 150;
/** Live data is asked for again after this time at the earliest, and after a multiple of the time that
 * it took, so that a slow answer does not keep the server busy. */
const GAP_MS = 400;
const GAP_FACTOR = 3;

/** Data that is loaded for a key, and loaded again when it grew, or when nobody answered. */
export class Resource<T> {
  /** What was loaded last; with `keep`, until the next arrives, else only for its own key. */
  data = $state.raw<T | null>(null);
  error = $state<string | null>(null);
  isSlow = $state(false);

  private key: string | null = null;
  private about: string | null = null;
  private version: unknown = null;
  private abort: AbortController | null = null;
  private isStale = false;
  private timer = 0;
  private patience = 0;

  constructor(private readonly options: { keep?: boolean; gapMs?: number } = {}) {}

  /** Loads if the key is new, or if the same key's data has a new version. What is kept until then is only
   * what is `about` the same: a sample's name must not stand over another's numbers. */
  load(
    key: string,
    version: unknown,
    fetch: (signal: AbortSignal) => Promise<T>,
    about: string | null = null,
  ): void {
    if (key !== this.key) {
      this.stop();
      this.key = key;
      if (!this.options.keep || about !== this.about) this.data = null;
      this.about = about;
    } else if (version === this.version) {
      return;
    } else if (this.abort || this.timer) {
      this.isStale = true;
      this.version = version;
      return;
    }
    this.version = version;
    void this.run(fetch);
  }

  /** Has nothing until something is loaded again. */
  clear(): void {
    this.stop();
    this.data = null;
    this.error = null;
  }

  stop(): void {
    this.abort?.abort();
    clearTimeout(this.timer);
    clearTimeout(this.patience);
    this.abort = null;
    this.timer = 0;
    this.isStale = false;
    this.isSlow = false;
    this.key = null;
  }

  private async run(fetch: (signal: AbortSignal) => Promise<T>): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    this.patience = window.setTimeout(() => {
      this.isSlow = true;
    }, PATIENCE_MS);
    const started = performance.now();
    let gap = this.options.gapMs ?? GAP_MS;
    try {
      const data = await fetch(abort.signal);
      if (abort.signal.aborted) return;
      this.data = data;
      this.error = null;
    } catch (error) {
      if (abort.signal.aborted) return;
      this.error = error instanceof Error ? error.message : String(error);
      if (error instanceof Unreachable) {
        this.isStale = true;
        gap = AGAIN_MS;
      }
    }
    clearTimeout(this.patience);
    this.isSlow = false;
    this.abort = null;
    this.timer = window.setTimeout(
      () => {
        this.timer = 0;
        if (this.isStale) {
          this.isStale = false;
          void this.run(fetch);
        }
      },
      Math.max(gap, GAP_FACTOR * (performance.now() - started)),
    );
  }
}
