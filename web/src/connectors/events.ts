import type { Watcher } from "./transport";

const FIRST_RETRY_MS = 2000;
const LAST_RETRY_MS = 30_000;

/** Listens to the `change` events of an address until the function that it returns is called.
 *
 * A browser keeps only six connections to one server, over all its tabs, and such a stream holds one
 * for good: so only a page that is seen listens. The first event after it is seen again tells all. */
export function watchEvents<T>(
  address: string,
  { onChange, onConnection }: Watcher<T>,
): () => void {
  let source: EventSource | null = null;
  let retry = 0;
  let delay = FIRST_RETRY_MS;

  function open() {
    close();
    if (document.hidden) return;
    const opened = new EventSource(address);
    opened.addEventListener("change", (event) => {
      delay = FIRST_RETRY_MS;
      onConnection(true);
      onChange(JSON.parse((event as MessageEvent<string>).data) as T);
    });
    opened.addEventListener("error", () => {
      onConnection(false);
      // A broken connection is opened again by the browser; a refused one is not.
      if (opened.readyState !== EventSource.CLOSED) return;
      retry = window.setTimeout(open, delay);
      delay = Math.min(LAST_RETRY_MS, delay * 2);
    });
    source = opened;
  }

  function close() {
    clearTimeout(retry);
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    document.removeEventListener("visibilitychange", open);
    close();
  };
}
