import { untrack } from "svelte";
import type { WayToLab } from "./asking";
import type { Message } from "./frames";
import { areAlike, difference, type Model, type Picture, readLayers, readLinks } from "./picture";
import type { Threshold } from "./sankey";

export interface Edit {
  op: "set" | "noise" | "swap" | "release";
  layer: string;
  cells?: number[];
  value?: number;
  values?: number[];
  sigma?: number;
  seed?: number;
  sample?: number;
}

export interface Grouping {
  by: string;
  open: number[];
}

export interface Objective {
  layer: string | null;
  cells: number[];
}

export interface Chosen {
  layer: string;
  cells: number[];
  label: string;
}

export interface Failure {
  error: string;
  where?: string;
  code?: string;
  details?: string;
}

export type View = "after" | "before" | "difference" | "both";

/** All that the page knows of the model, and all that it asks of it. */
export class LabState {
  model = $state.raw<Model | null>(null);
  saved = $state.raw<string[]>([]);
  sample = $state(0);
  /** The input that is edited; a model may have several. */
  input = $state("");
  step = $state<number | null>(null);
  layers = $state.raw<string[]>([]);
  objective = $state.raw<Objective>({ layer: null, cells: [] });
  flow = $state<"gradient" | "activation">("gradient");
  groups = $state.raw<Record<string, Grouping>>({});
  edits = $state.raw<Edit[]>([]);
  undone = $state.raw<Edit[]>([]);
  view = $state<View>("after");
  threshold = $state.raw<Threshold>({ kind: "top", amount: 150 });

  now = $state.raw<Picture | null>(null);
  before = $state.raw<Picture | null>(null);
  chosen = $state.raw<Chosen | null>(null);
  trace = $state.raw<Record<string, Float32Array> | null>(null);
  failure = $state.raw<Failure | null>(null);
  progress = $state.raw<{ done: number; total: number; what: string } | null>(null);
  isBusy = $state(false);
  /** How long the last answer took from the question to the last link, in milliseconds. */
  tookMs = $state<number | null>(null);
  notice = $state("");

  readonly isEdited = $derived(this.edits.length > 0);
  readonly shown = $derived.by((): Picture | null => {
    const { now, before } = this;
    if (!now || !before || this.view === "after" || this.view === "both") return now;
    if (this.view === "before") return before;
    return areAlike(now, before) ? difference(now, before) : now;
  });

  private asking: AbortController | null = null;
  private tracing: AbortController | null = null;
  private beforeKey = "";

  constructor(private readonly way: WayToLab) {}

  async open(): Promise<void> {
    await this.once({ method: "describe" }, ({ header }) => {
      const { event: _, saved, ...model } = header;
      this.model = model as unknown as Model;
      this.saved = saved;
      this.layers = this.model.chosen;
      this.input = this.model.layers.find(({ kind }) => kind === "input")?.name ?? "";
      this.step = this.model.steps.at(-1) ?? null;
    });
    if (this.model) await this.ask();
  }

  /** Shows another step of a recorded run: the next or the one before. */
  goStep(by: number): void {
    const steps = this.model?.steps ?? [];
    const at = steps.indexOf(this.step ?? -1) + by;
    if (steps[at] === undefined) return;
    this.step = steps[at];
    void this.ask();
  }

  /** The edits as they would be sent, without those of `edits`. */
  private key(): string {
    const { sample, step, layers, objective, flow, groups } = this;
    return JSON.stringify({ sample, step, layers, objective, flow, groups });
  }

  private question(edits: readonly Edit[]) {
    const { sample, step, layers, objective, flow, groups } = this;
    return { sample, step, layers, objective, flow, groups, edits };
  }

  /** Asks for the picture; a question that was under way is withdrawn. */
  async ask(): Promise<void> {
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    this.isBusy = true;
    const started = performance.now();
    const key = this.key();
    const isDone = await this.gather(this.edits, asking.signal, (picture) => {
      this.now = picture;
    });
    if (asking.signal.aborted) return;
    this.progress = null;
    this.isBusy = false;
    if (!isDone) return;
    this.tookMs = performance.now() - started;
    if (!this.isEdited) {
      this.before = this.now;
      this.beforeKey = key;
    }
    void this.askTrace();
    if (this.view !== "after") await this.askBefore();
  }

  /** Asks for the picture without any edit, unless it is known. */
  async askBefore(): Promise<void> {
    const key = this.key();
    if (this.beforeKey === key || !this.asking) return;
    let found: Picture | null = null;
    const isDone = await this.gather([], this.asking.signal, (picture) => {
      found = picture;
    });
    if (!isDone || !found) return;
    this.before = found;
    this.beforeKey = key;
  }

  private async gather(
    edits: readonly Edit[],
    signal: AbortSignal,
    onPicture: (picture: Picture) => void,
  ): Promise<boolean> {
    let picture: Picture | null = null;
    let isDone = false;
    let frame = 0;
    // At most once for each frame: links come faster than they can be drawn.
    const show = () => {
      cancelAnimationFrame(frame);
      frame = 0;
      if (picture && !signal.aborted) onPicture(picture);
    };
    const old = untrack(() => this.now);
    await this.tell({ method: "picture", ...this.question(edits) }, signal, (message) => {
      const { header } = message;
      if (header.event === "layers") {
        picture = readLayers(message);
        // The links from before stay until the new ones come: no flicker.
        if (old && areAlike(old, picture)) picture = { ...picture, pairs: old.pairs };
        this.failure = null;
      } else if (header.event === "links" && picture) {
        const pair = readLinks(message);
        const others = picture.pairs.filter((each) => !isBetween(each, header));
        picture = { ...picture, pairs: inOrder([...others, pair], picture) };
      } else if (header.event === "no_links" && picture) {
        const pairs = picture.pairs.filter((each) => !isBetween(each, header));
        picture = { ...picture, pairs, problems: [...picture.problems, header.error] };
      } else if (header.event === "progress") {
        const { done, total, source, sink } = header;
        this.progress = { done, total, what: `${source} → ${sink}` };
        return;
      } else if (header.event === "done") isDone = true;
      if (frame === 0) frame = requestAnimationFrame(show);
    });
    show();
    return isDone;
  }

  cancel(): void {
    this.asking?.abort();
    this.isBusy = false;
    this.progress = null;
    this.notice = "Cancelled: what is shown may be of the edit before.";
  }

  edit(edit: Edit): void {
    this.edits = [...this.edits, edit];
    this.undone = [];
    if (this.view === "before") this.view = "after"; // to see what it does
    void this.ask();
  }

  /** Edits another input, which is then among the layers. */
  editInput(name: string): void {
    this.input = name;
    if (!this.layers.includes(name)) this.toggleLayer(name);
  }

  /** Shows one more layer, or one less. */
  toggleLayer(name: string): void {
    const has = this.layers.includes(name);
    if (has && this.layers.length <= 2) return;
    const order = this.model!.layers.map((each) => each.name);
    const next = has ? this.layers.filter((each) => each !== name) : [...this.layers, name];
    this.layers = next.sort((a, b) => order.indexOf(a) - order.indexOf(b));
    void this.ask();
  }

  /** Whether the chosen layer has edits that could be taken back. */
  get canRelease(): boolean {
    return this.edits.some(({ layer }) => layer === this.chosen?.layer);
  }

  /** Holds the chosen cells at a value. */
  hold(value: number): void {
    if (!this.chosen || !this.model?.can_edit) return;
    this.edit({ op: "set", layer: this.chosen.layer, cells: this.chosen.cells, value });
  }

  /** Lets the chosen cells be what they would be. */
  release(): void {
    if (!this.chosen || !this.canRelease) return;
    this.edit({ op: "release", layer: this.chosen.layer, cells: this.chosen.cells });
  }

  /** Takes gradients of the chosen cells. */
  aim(): void {
    if (!this.chosen || !this.model?.can_edit) return;
    this.objective = { layer: this.chosen.layer, cells: this.chosen.cells };
    void this.ask();
  }

  undo(): void {
    const last = this.edits.at(-1);
    if (!last) return;
    this.edits = this.edits.slice(0, -1);
    this.undone = [...this.undone, last];
    void this.ask();
  }

  redo(): void {
    const next = this.undone.at(-1);
    if (!next) return;
    this.undone = this.undone.slice(0, -1);
    this.edits = [...this.edits, next];
    void this.ask();
  }

  reset(): void {
    if (!this.isEdited) return;
    this.undone = [...this.edits].reverse();
    this.edits = [];
    void this.ask();
  }

  choose(chosen: Chosen | null): void {
    this.chosen = chosen;
    this.trace = null;
    void this.askTrace();
  }

  private async askTrace(): Promise<void> {
    this.tracing?.abort();
    const { chosen } = this;
    const layer = this.now?.layers.find(({ name }) => name === chosen?.layer);
    if (!chosen || !layer?.grads || this.isBusy) {
      if (!chosen || !layer) this.trace = null;
      return;
    }
    const tracing = new AbortController();
    this.tracing = tracing;
    const asked = { method: "trace", ...this.question(this.edits), ...chosen };
    await this.tell(asked, tracing.signal, ({ header, arrays }) => {
      if (header.event !== "trace") return;
      this.trace = Object.fromEntries(
        (header.layers as string[]).map((name, n) => [name, arrays[n] as Float32Array]),
      );
    });
  }

  async save(name: string): Promise<void> {
    await this.once({ method: "save", name, ...this.question(this.edits) }, ({ header }) => {
      this.saved = header.saved;
      this.notice = `Saved as ${header.file}.`;
    });
  }

  async replay(name: string): Promise<void> {
    await this.once({ method: "load", name }, ({ header }) => {
      this.sample = header.sample;
      this.edits = header.edits;
      this.undone = [];
      void this.ask(); // at once: until then the numbers are of other edits
    });
  }

  async forget(name: string): Promise<void> {
    await this.once({ method: "delete", name }, ({ header }) => {
      this.saved = header.saved;
    });
  }

  /** The flows in the layout of `flow_info`, as a file. */
  async flowInfo(form: "npz" | "safetensors"): Promise<Blob | null> {
    let file: Blob | null = null;
    const asked = { method: "flow_info", form, ...this.question(this.edits) };
    await this.once(asked, ({ header, arrays }) => {
      if (header.event !== "file") return;
      const words = arrays[0]!;
      const bytes = new Uint8Array(words.buffer as ArrayBuffer, words.byteOffset, header.bytes);
      file = new Blob([bytes.slice()]);
    });
    return file;
  }

  private async once(
    question: { method: string } & Record<string, unknown>,
    onMessage: (message: Message) => void,
  ): Promise<void> {
    await this.tell(question, undefined, onMessage);
  }

  private async tell(
    question: { method: string } & Record<string, unknown>,
    signal: AbortSignal | undefined,
    onMessage: (message: Message) => void,
  ): Promise<void> {
    try {
      await this.way.ask(
        question,
        (message) => {
          if (signal?.aborted) return;
          if (message.header.event === "error") this.failure = message.header as unknown as Failure;
          else onMessage(message);
        },
        signal,
      );
    } catch (error) {
      if (!signal?.aborted) {
        this.failure = { error: `The lab does not answer (${(error as Error).message}).` };
      }
    }
  }
}

function isBetween(pair: Picture["pairs"][number], { source, sink }: Message["header"]): boolean {
  return pair.source === source && pair.sink === sink;
}

function inOrder(pairs: Picture["pairs"], { layers }: Picture): Picture["pairs"] {
  const place = new Map(layers.map(({ name }, n) => [name, n]));
  return pairs
    .filter(({ source, sink }) => place.has(source) && place.has(sink))
    .sort((a, b) => place.get(a.sink)! - place.get(b.sink)!);
}
