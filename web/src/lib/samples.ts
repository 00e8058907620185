import type { KeptRow, SampleRow } from "../connectors/kept";
import { iterationRows } from "./iterations";
import { columnOf, positionOf, sampleKey } from "./kept";
import { isOfParameters, quantityLabel, type Statistic } from "./statistics";

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

/** The one sample that a question is about; null for whole batches, as their mean is of them too. */
export function askedSample(sample: string | null): string | null {
  return isOne(sample) ? sample : null;
}

const RECORDED: ReadonlySet<string> = new Set([...SAMPLE_STATISTICS, "rms", "norm"]);
/** What is told from all of a sample's values, and from nothing else. */
const OF_VALUES: ReadonlySet<string> = new Set([
  "min",
  "max",
  "zero_share",
  "nan_share",
  "inf_share",
]);

export interface SampleQuestion {
  sample: string | null;
  quantity: string;
  /** Null where it is about all values, as a histogram is. */
  statistic: Statistic | null;
  /** Whether the run has anything of single samples. */
  hasSamples: boolean;
  /** Whether the page is an exported file. */
  isFile: boolean;
}

/** Why a view of all tensors cannot show one sample; null where it can, or is not asked to. */
export function whyNotOfSample(asked: SampleQuestion): string | null {
  const { sample, quantity, statistic } = asked;
  if (!isOne(sample)) return null;
  if (asked.isFile)
    return `This file has whole batches here, not sample ${sample}: Tensor shows what it has of it.`;
  if (!asked.hasSamples)
    return "Nothing of single samples was recorded in this run: watch(…, samples=8) keeps 8 of each batch.";
  if (isOfParameters(quantity, statistic?.name ?? "")) {
    const what = quantity === "value" ? (statistic?.label ?? quantity) : quantityLabel(quantity);
    return `${what} is of parameters, which have no samples.`;
  }
  if (statistic === null || RECORDED.has(statistic.name) || OF_VALUES.has(statistic.name))
    return null;
  return `${statistic.label} is told of whole batches alone: of a sample there are mean, abs mean, std, abs max, rms and norm.`;
}

/** What is said where a view finds nothing of a sample: `at` says when. */
export function noneOfSample(sample: string, at: string, statistic: Statistic | null): string {
  if (statistic === null || OF_VALUES.has(statistic.name)) {
    const what = statistic === null ? "its exponents are" : `${statistic.label} is`;
    return `Of sample ${sample} not all values of a tensor were kept ${at}, and ${what} told from those alone: watch(…, samples=…, neurons=…) says what is kept.`;
  }
  return `Nothing of sample ${sample} was recorded ${at}: watch(…, samples=…) says which samples are kept.`;
}
