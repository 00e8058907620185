import type { HeatmapMatrix } from "../lib/heatmap";
import type { Sketch } from "../lib/sketch";

/** Where the data comes from. Each method is named after the address of the HTTP interface. */
export interface Connector {
  runs(signal?: AbortSignal): Promise<RunList>;
  run(id: string, signal?: AbortSignal): Promise<RunDetail>;
  sites(id: string, signal?: AbortSignal): Promise<Site[]>;
  steps(id: string, after: number | null, signal?: AbortSignal): Promise<StepColumns>;
  scalars(id: string, query: ScalarsQuery, signal?: AbortSignal): Promise<ScalarColumns>;
  notes(id: string, signal?: AbortSignal): Promise<Note[]>;
  heatmap(id: string, query: HeatmapQuery, signal?: AbortSignal): Promise<HeatmapMatrix>;
  history(id: string, query: SiteQuery, signal?: AbortSignal): Promise<History>;
  sketches(id: string, query: SiteQuery, signal?: AbortSignal): Promise<SketchSlice[]>;
  /** Calls back at once and after each change, until the function that it returns is called. */
  watchRuns(watcher: Watcher<Summary[]>): () => void;
  watchRun(id: string, watcher: Watcher<RunChange>): () => void;
}

export interface Watcher<T> {
  onChange: (change: T) => void;
  onConnection: (isConnected: boolean) => void;
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
  /** A sentence for each damaged file. */
  problems: string[];
}

export interface Site {
  site: number;
  name: string;
  tensor_class: string;
  module: string;
  module_class: string;
  place: string;
  call: number;
  aliases: string[];
  first_step: number;
}

export interface StepColumns {
  step: number[];
  recorded: boolean[];
  duration_secs: number[];
  recording_secs: number[];
}

export interface ScalarColumns {
  step: ArrayLike<number>;
  name: ArrayLike<string>;
  value: ArrayLike<number>;
}

export interface Note {
  step: number;
  text: string;
  written_at: number;
}

export interface ScalarsQuery {
  after: number | null;
  points: number;
}

export interface HeatmapQuery {
  quantity: string;
  statistic: string;
  columns: number;
}

export interface SiteQuery {
  site: number;
  quantity: string;
  /** At most about this many rows. */
  limit: number;
}

/** The statistics of one quantity of one site, a row for each recorded step: its last iteration's. */
export interface History {
  step: number[];
  rows: Record<string, number>[];
  /** How many iterations each step had. */
  iterations: number[];
  dtype: string[];
  shape: number[][];
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
