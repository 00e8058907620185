/** What a request asks for; what is null is left out. */
export type Query = Record<string, string | number | null>;

/** The way to the data: over HTTP, through a notebook's own channel, or out of the page's own file.
 *
 * An address is one of `docs/http.md` without its `api/`. A new address needs nothing here. */
export interface Transport {
  /** Sentences that say what is not there, if this way has not all of it. */
  readonly about?: readonly string[];
  /** False where pictures of all sites are there of all iterations together, and not of single ones. */
  readonly hasIterations?: boolean;
  /** False where pictures over steps are of all kinds of steps together. */
  readonly hasKinds?: boolean;
  /** Where not all is there: the steps at which an address has an answer to such a question. */
  stepsWith?(path: string, query: Query): number[];
  /** The answer's bytes; an error has the sentence that the viewer says. */
  fetch(path: string, query: Query, signal?: AbortSignal): Promise<ArrayBuffer>;
  /** The address of another page of the same server, where there is a server. */
  page?(name: string, query: Query): string;
  /** What a frame shows of an address: its own policy comes with it, or it has to be put in. */
  frame(path: string): Promise<FrameSource>;
  /** Calls back with the state now and after each change, until what it returns is called. */
  watch<T>(path: string, watcher: Watcher<T>): () => void;
}

export type FrameSource = { src: string } | { srcdoc: string };

export interface Watcher<T> {
  onChange: (change: T) => void;
  onConnection: (isConnected: boolean) => void;
}

/** `path?name=value&…`: what is asked for, in one text. */
export function addressOf(path: string, query: Query): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null) parameters.set(name, String(value));
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

/** How long whoever meets nobody waits before asking again. */
export const AGAIN_MS = 2000;

/** Nobody answers: not the fault of what was asked for, so it may be asked again. */
export class Unreachable extends Error {
  constructor() {
    super("The viewer does not answer: is it still running?");
  }
}

/** The sentence of an answer that is an error. */
export function errorIn(body: string, status: number): string {
  try {
    const { error } = JSON.parse(body) as { error?: string };
    if (error) return error;
  } catch {
    // A proxy in between may answer with a page of its own.
  }
  return `The viewer answered with status ${status}.`;
}
