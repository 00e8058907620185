import { watchEvents } from "./events";
import {
  addressOf,
  errorIn,
  type FrameSource,
  type Query,
  type Transport,
  Unreachable,
  type Watcher,
} from "./transport";

/** The viewer's HTTP interface, at an address relative to the page. */
export class OverHttp implements Transport {
  constructor(private readonly base = "api/") {}

  async fetch(path: string, query: Query, signal?: AbortSignal): Promise<ArrayBuffer> {
    const response = await fetch(this.base + addressOf(path, query), { signal }).catch((error) => {
      throw signal?.aborted ? error : new Unreachable();
    });
    if (!response.ok) throw new Error(errorIn(await response.text(), response.status));
    return response.arrayBuffer();
  }

  page(name: string, query: Query): string {
    return addressOf(name, query);
  }

  async frame(path: string): Promise<FrameSource> {
    return { src: this.base + path };
  }

  watch<T>(path: string, watcher: Watcher<T>): () => void {
    return watchEvents(this.base + path, watcher);
  }
}
