/** What was kept of single samples, and what happened besides numbers. */

/** Rows of one step, and the nearest steps that have any. */
export interface Beside<T> {
  rows: T[];
  before: number | null;
  after: number | null;
}

export interface EventRow {
  step: number;
  kind: string;
  /** -1 where it is about no single site. */
  site: number;
  text: string;
  happened_at: number;
}

export interface Call {
  iteration: number;
  order: number;
  function: string;
  module: string;
  arguments: string;
  result: string;
  source: string;
  code: string;
  rank: number;
}

export interface KeptSample {
  sample: number;
  data_index: number | null;
}

/** The raw values of one sample, or of a tensor that has no batch. */
export interface KeptRow {
  rank: number;
  iteration: number;
  backward: string;
  sample: number | null;
  data_index: number | null;
  dtype: string;
  shape: number[];
  batch_dim: number | null;
  neurons: number;
  neuron_step: number;
  positions: ArrayLike<number> | null;
  note: string;
  values: ArrayLike<number>;
}

export interface SampleRow {
  step: number;
  kind: string;
  iteration: number;
  backward: string;
  sample: number;
  data_index: number | null;
  mean: number;
  abs_mean: number;
  std: number;
  abs_max: number;
}
