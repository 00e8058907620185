import type { GraphAnswer } from "../lib/graph/answer";
import type { Moment } from "../lib/graph/moment";
import type { HeatmapMatrix } from "../lib/heatmap";
import type { ScalarRows } from "../lib/series";
import type { Sketch } from "../lib/sketch";
import type { OwnStatistic } from "../lib/statistics";
import type { StepRows } from "../lib/steps";
import type { Beside, Call, EventRow, KeptRow, KeptSample, SampleRow } from "./kept";
import type { FrameSource, Query, Watcher } from "./transport";

export type Table = Awaited<ReturnType<typeof import("./arrow")["tableFromIPC"]>>;

/** Where the data comes from. Each method is named after the address of the HTTP interface. */
export interface Connector {
  runs(signal?: AbortSignal): Promise<RunList>;
  run(id: string, signal?: AbortSignal): Promise<RunDetail>;
  sites(id: string, signal?: AbortSignal): Promise<Site[]>;
  steps(id: string, query: StepsQuery, signal?: AbortSignal): Promise<Steps>;
  scalars(id: string, query: ScalarsQuery, signal?: AbortSignal): Promise<ScalarColumns>;
  notes(id: string, signal?: AbortSignal): Promise<Told<Note>>;
  heatmap(id: string, query: HeatmapQuery, signal?: AbortSignal): Promise<Heatmap>;
  graph(id: string, step: number, signal?: AbortSignal): Promise<GraphAnswer>;
  moment(id: string, query: MomentQuery, signal?: AbortSignal): Promise<Moment>;
  history(id: string, query: SiteQuery, signal?: AbortSignal): Promise<HistoryRow[]>;
  sketches(id: string, query: SketchesQuery, signal?: AbortSignal): Promise<SketchSlice[]>;
  eventLog(id: string, signal?: AbortSignal): Promise<Told<EventRow>>;
  calls(id: string, step: number, signal?: AbortSignal): Promise<Beside<Call>>;
  samples(id: string, step: number, signal?: AbortSignal): Promise<KeptSample[]>;
  values(id: string, query: ValuesQuery, signal?: AbortSignal): Promise<Beside<KeptRow>>;
  siteSamples(id: string, query: SiteQuery, signal?: AbortSignal): Promise<SampleRow[]>;
  /** Any address, for views that have questions of their own: see `analyses.ts`. */
  json<T>(path: string, signal?: AbortSignal, query?: Query): Promise<T>;
  arrow(path: string, query: Query, signal?: AbortSignal): Promise<Table>;
  custom(id: string, query: Query, signal?: AbortSignal): Promise<Picture>;
  /** What showing a picture may need: a frame apart from the page, and the script of Plotly. */
  customFrame(): Promise<FrameSource>;
  plotly(): Promise<string>;
  /** The address of the lab's page about a run's recorded flows; null where there is none. */
  labOf(id: string): string | null;
  /** Sentences about where the data comes from, if it is not all of it. */
  readonly about: readonly string[];
  /** Whether heatmaps, distributions, Numerics and Flow can be asked for single iterations. */
  readonly hasIterations: boolean;
  /** Whether pictures over steps can be asked for steps of one kind alone. */
  readonly hasKinds: boolean;
  /** The steps at which an address has an answer to such a question, where it does not have one at each. */
  stepsWith(path: string, query: Query): number[];
  /** Calls back at once and after each change, until the function that it returns is called. */
  watchRuns(watcher: Watcher<Summary[]>): () => void;
  watchRun(id: string, watcher: Watcher<RunChange>): () => void;
}

export type Status = "live" | "finished" | "failed" | "stopped";

export interface Summary {
  id: string;
  project: string;
  name: string;
  status: Status;
  created_at: number;
  updated_at: number;
  ended_at: number | null;
  age_secs: number | null;
  step: number | null;
  steps: number;
  recorded_steps: number;
  loss: number | null;
  loss_curve: (number | null)[];
  recording_share: number | null;
  faults: number;
}

export interface RunList {
  runs: Summary[];
  /** A sentence for each run that cannot be read. */
  problems: string[];
}

/** How many rows each table has, of those that the page shows; the answer may count others too. */
export interface Rows {
  stats: number;
  sites: number;
  steps: number;
  scalars: number;
  notes: number;
  events: number;
  samples: number;
  calls: number;
}

export interface RunChange {
  summary: Summary;
  rows: Rows;
}

export interface RunDetail extends RunChange {
  config: Record<string, unknown>;
  environment: Record<string, unknown>;
  recorder: Record<string, unknown>;
  modules: { name: string; class: string; parameters: number; extra: string }[];
  scalar_names: string[];
  quantities: string[];
  /** What it was asked for besides the statistics of every run. */
  statistics: OwnStatistic[];
  /** What the view of the user's own is called, if there is one. */
  custom: string | null;
  /** The steps at which flows between layers were recorded, cell by cell. */
  flow_steps: number[];
  /** A sentence for each damaged file. */
  problems: string[];
  /** The first and the last of each stretch of recorded steps that cannot be read. */
  lost_steps: [first: number, last: number][];
}

export interface Site {
  site: number;
  name: string;
  tensor_class: string;
  module: string;
  module_class: string;
  place: string;
  call: number;
  /** Of a named tensor: input, hidden, target, loss or helper. */
  kind: string;
  aliases: string[];
  first_step: number;
}

/** Some of the recorded steps, and what is to be said of all steps. */
export interface Steps {
  rows: StepRows;
  facts: StepFacts;
}

export interface StepFacts {
  first: number | null;
  last: number | null;
  /** How many steps of each kind were recorded. */
  kinds: Record<string, number>;
  /** Medians. */
  step_secs: number | null;
  recording_secs: number | null;
}

export interface ScalarColumns extends ScalarRows {
  /** The last step whose kind is known: that of a later one may still turn out to be another. */
  settled: number | null;
}

export interface Note {
  step: number;
  text: string;
  written_at: number;
}

/** Rows, and how many in the middle were left out because there are very many. */
export interface Told<T> {
  rows: T[];
  leftOut: number;
}

/** One value for each site and column of steps. */
export interface Heatmap extends HeatmapMatrix {
  /** How many recorded steps the fullest column holds. */
  fullest: number;
  /** Of how many steps it was read, and of how many it is; of one sample alone. */
  steps: readonly [read: number, of: number] | null;
}

export interface StepsQuery {
  /** Only steps of this kind, only later ones, all around this one; null for any. */
  kind: string | null;
  after: number | null;
  around: number | null;
  /** About how many besides those around. */
  points: number;
}

export interface ScalarsQuery {
  after: number | null;
  points: number;
}

export interface HeatmapQuery {
  quantity: string;
  statistic: string;
  columns: number;
  /** Only steps from one to another; null for all. */
  first?: number | null;
  last?: number | null;
  /** Only this one; null for the greatest of all. */
  iteration?: number | null;
  /** Only this one; null for whole batches. */
  sample?: string | null;
  /** Only steps of this one; null for all. */
  kind?: string | null;
}

export interface MomentQuery {
  step: number;
  quantity: string;
  statistic: string;
  /** Only this one; null for the whole batch. */
  sample?: string | null;
}

export interface ValuesQuery {
  site: number;
  quantity: string;
  step: number;
}

export interface SiteQuery {
  site: number;
  quantity: string;
  /** At most about this many rows. */
  limit: number;
}

export interface SketchesQuery extends SiteQuery {
  /** Only this one; null for all. */
  iteration: number | null;
  /** Only steps of this one; null for all. */
  kind: string | null;
}

/** The statistics of one quantity of one site at one iteration of a step. */
export interface HistoryRow {
  step: number;
  kind: string;
  iteration: number;
  dtype: string;
  shape: number[];
  statistics: Record<string, number>;
}

export interface SketchSlice extends Sketch {
  first_step: number;
  last_step: number;
  count: number;
  nans: number;
  infs: number;
  min: number;
  max: number;
}

/** What a function of the user's made of the selection. */
export type Picture =
  | { kind: "plotly"; figure: Record<string, unknown> }
  | { kind: "image"; type: string; data: string; scale?: number }
  | { kind: "html"; html: string }
  | { kind: "error"; error: string; traceback: string }
  /** Another selection came before it was this one's turn. */
  | { kind: "superseded" };
