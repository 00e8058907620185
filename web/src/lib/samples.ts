import type { KeptRow, SampleRow } from "../connectors/kept";
import { iterationRows } from "./iterations";
import { columnOf, positionOf, sampleKey } from "./kept";

/** What the address says for the mean over the batch, beside the keys of single samples. */
export const MEAN = "mean";

/** Whether one sample is meant, rather than all or their mean. */
export function isOne(sample: string | null): sample is string {
  return sample !== null && sample !== MEAN;
}

/** What was recorded of single samples. */
export const SAMPLE_STATISTICS = ["mean", "abs_mean", "std", "abs_max"] as const;

/** The rows of one sample: one for each step, of an iteration or the last; and how many there were. */
export function sampleHistory(rows: readonly SampleRow[], key: string, iteration: number | null) {
  return iterationRows(
    rows.filter((row) => sampleKey(row) === key),
    iteration,
  );
}

/** Kept samples as one: the mean of each neuron. What has no batch stays as it is. */
export function meanOfSamples(rows: readonly KeptRow[]): KeptRow[] {
  const samples = rows.filter(({ sample }) => sample !== null);
  const first = samples[0];
  if (!first) return [...rows];
  const values = Float64Array.from({ length: first.values.length }, (_, column) => {
    const position = positionOf(first, column);
    const found = samples.map((row) => row.values[columnOf(row, position)]);
    const known = found.filter((value) => value !== undefined);
    return known.reduce((sum, value) => sum + value, 0) / known.length;
  });
  const note = `mean of ${samples.length} kept samples`;
  return [{ ...first, sample: null, data_index: null, values, note }];
}

/** What is said where numbers are not, or not only, of the chosen sample. */
export function sampleNote(chosen: string | null, shown: string | null): string {
  if (chosen === null) return "";
  return shown === null ? "of the whole batch" : `of sample ${shown}`;
}
