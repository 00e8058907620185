import { addressOf, type FrameSource, type Query, type Transport, type Watcher } from "./transport";

/** Where the answer to an address stands: a pack, the first byte in it, and how many. */
type Found = [pack: number, start: number, length: number];

/** What `backlight export` wrote into the page's own file. */
export interface Contents {
  answers: Record<string, Found>;
  /** What could not be answered when it was written, and why. */
  failures?: Record<string, string>;
  /** How to find the answer that stands for many: which parameters of a question do not matter. */
  ignored: string[];
  /** Sentences that say what was left out. */
  about: string[];
  /** What is shown first. */
  place: string;
}

const NOT_THERE =
  "This file does not contain that: `backlight view` shows it, where the run itself is.";

/** How many packs are kept unpacked. */
const MOST_OPEN = 24;

/** The page's own file, which has the answers that the viewer gave when it was written. */
export class OverFile implements Transport {
  private readonly open = new Map<number, Promise<ArrayBuffer>>();

  constructor(
    readonly contents: Contents,
    private readonly pack: (number: number) => Promise<ArrayBuffer>,
  ) {}

  get hasIterations(): boolean {
    return !this.contents.ignored.includes("iteration");
  }

  /** Of one kind there are only its steps themselves. */
  readonly hasKinds = false;

  get about(): readonly string[] {
    return this.contents.about;
  }

  async fetch(path: string, query: Query, signal?: AbortSignal): Promise<ArrayBuffer> {
    const address = canonical(path, query, this.contents.ignored);
    const found = Object.hasOwn(this.contents.answers, address) && this.contents.answers[address];
    if (!found) throw new Error(this.contents.failures?.[address] ?? NOT_THERE);
    const [number, start, length] = found;
    const bytes = await this.unpacked(number);
    signal?.throwIfAborted();
    const answer = bytes.slice(start, start + length);
    return path.endsWith("/exponents") ? ofSites(answer, String(query.sites)) : answer;
  }

  stepsWith(path: string, query: Query): number[] {
    const steps = new Set<number>();
    for (const address of Object.keys(this.contents.answers)) {
      if (!address.startsWith(`${path}?`)) continue;
      const asked = new URLSearchParams(address.slice(path.length + 1));
      const isSuch = Object.entries(query).every(
        ([name, value]) => asked.get(name) === String(value),
      );
      if (isSuch && asked.has("step")) steps.add(Number(asked.get("step")));
    }
    return [...steps].sort((a, b) => a - b);
  }

  async frame(path: string): Promise<FrameSource> {
    return { srcdoc: new TextDecoder().decode(await this.fetch(path, {})) };
  }

  watch<T>(path: string, { onChange }: Watcher<T>): () => void {
    let isStopped = false;
    void this.fetch(path, {}).then((bytes) => {
      if (!isStopped) onChange(JSON.parse(new TextDecoder().decode(bytes)) as T);
    });
    return () => {
      isStopped = true;
    };
  }

  private unpacked(number: number): Promise<ArrayBuffer> {
    const found = this.open.get(number) ?? this.pack(number);
    this.open.delete(number);
    this.open.set(number, found);
    if (this.open.size > MOST_OPEN) this.open.delete(this.open.keys().next().value!);
    return found;
  }
}

/** Of an answer that has all sites, those that were asked for, in their order. */
function ofSites(answer: ArrayBuffer, asked: string): ArrayBuffer {
  const { sites, ...rest } = JSON.parse(new TextDecoder().decode(answer));
  const found = new Map<string, unknown>(
    (sites as { site: number }[]).map((each) => [String(each.site), each]),
  );
  const part = asked.split(",").flatMap((site) => found.get(site) ?? []);
  return new TextEncoder().encode(JSON.stringify({ ...rest, sites: part })).buffer as ArrayBuffer;
}

/** One spelling for each question: parameters sorted, without those that do not matter. */
export function canonical(path: string, query: Query, ignored: readonly string[]): string {
  const isIgnored = (name: string) =>
    ignored.includes(name) || (name === "kind" && !path.endsWith("/steps"));
  const names = Object.keys(query).filter((name) => !isIgnored(name));
  return addressOf(path, Object.fromEntries(names.sort().map((name) => [name, query[name]!])));
}

/** The packs and the list of them that stand in a document as base64 of gzip. */
export function filed(document: Document): Promise<OverFile> | null {
  const element = (id: string) => document.getElementById(id);
  if (!element("backlight-contents")) return null;
  const read = (id: string) => unzip(element(id)?.textContent ?? "");
  return read("backlight-contents").then((bytes) => {
    const contents = JSON.parse(new TextDecoder().decode(bytes)) as Contents;
    return new OverFile(contents, (number) => read(`backlight-pack-${number}`));
  });
}

function unzip(base64: string): Promise<ArrayBuffer> {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
