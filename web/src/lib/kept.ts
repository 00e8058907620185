import type { KeptRow, KeptSample } from "../connectors/kept";
import { iterationLabel } from "./iterations";
import { median } from "./ranges";

/** What a sample is called in the address: by its place in the data where that is known. */
export function sampleKey({
  sample,
  data_index,
}: {
  sample: number | null;
  data_index: number | null;
}) {
  if (data_index !== null) return `#${data_index}`;
  return sample === null ? "" : String(sample);
}

export function sampleLabel({ sample, data_index }: KeptSample): string {
  return data_index === null ? `sample ${sample}` : `sample ${sample}, data ${data_index}`;
}

/** The rows of an iteration, or of the last for null. What was seen once belongs to every iteration. */
export function ofIteration<T extends { iteration: number }>(
  rows: readonly T[],
  iteration: number | null,
): T[] {
  const last = rows.reduce((most, row) => Math.max(most, row.iteration), Number.NEGATIVE_INFINITY);
  const isOnce = rows.every((row) => row.iteration === last);
  const wanted = iteration === null || (isOnce && last <= 0) ? last : iteration;
  return rows.filter((row) => row.iteration === wanted);
}

/** Which iteration the rows of one are of, in words; empty where the step had one, or saw them once. */
export function keptIteration(
  shown: readonly { iteration: number }[],
  all: readonly { iteration: number }[],
  iterations: number,
): string {
  const iteration = shown[0]?.iteration;
  if (iteration === undefined || iterations <= 1) return "";
  if (iteration <= 0 && all.every((row) => row.iteration === iteration)) return "";
  return iterationLabel(iteration === iterations - 1 ? null : iteration, iterations);
}

/** Where a column of kept values is in the flattened sample. */
export function positionOf(row: KeptRow, column: number): number {
  return row.positions === null ? column * row.neuron_step : row.positions[column]!;
}

/** Where a position is among the kept ones, or -1. */
export function columnOf(row: KeptRow, position: number): number {
  const column =
    row.positions === null
      ? position / row.neuron_step
      : Array.prototype.indexOf.call(row.positions, position);
  return Number.isInteger(column) && column < row.values.length ? column : -1;
}

/** The shape of one sample: that of the tensor without its batch. */
export function sampleShape({ shape, batch_dim }: KeptRow): number[] {
  return Array.from(shape).filter((_, dim) => dim !== batch_dim);
}

/** A position in the flattened sample as an index into it: `3, 12`. */
export function neuronLabel(position: number, shape: readonly number[]): string {
  const index: number[] = [];
  let rest = position;
  for (const size of [...shape].reverse()) {
    index.unshift(size > 0 ? rest % size : 0);
    rest = Math.floor(rest / Math.max(1, size));
  }
  return index.length === 0 ? "0" : index.join(", ");
}

/** Cells in rows and columns, each a kept value: samples below each other, or one sample folded. */
export interface ValueGrid {
  rows: number;
  columns: number;
  /** The kept row and the column in it that a cell shows, or null. */
  at: (row: number, column: number) => { kept: number; column: number } | null;
  isFolded: boolean;
}

const WIDEST_FOLD = 128;

export function valueGrid(rows: readonly KeptRow[]): ValueGrid {
  const columns = rows.reduce((most, row) => Math.max(most, row.values.length), 0);
  if (rows.length === 1 && columns > 1) return foldedGrid(rows[0]!);
  return {
    rows: rows.length,
    columns,
    at: (kept, column) => (column < (rows[kept]?.values.length ?? 0) ? { kept, column } : null),
    isFolded: false,
  };
}

/** One sample as a matrix: as its last dimension has it, or about square. */
function foldedGrid(row: KeptRow): ValueGrid {
  const count = row.values.length;
  const shape = sampleShape(row);
  const last = shape.at(-1) ?? count;
  const isWhole = row.positions === null && row.neuron_step === 1;
  const columns =
    isWhole && shape.length > 1 && last > 1 ? last : Math.min(count, WIDEST_FOLD, square(count));
  return {
    rows: Math.ceil(count / columns),
    columns,
    at: (y, x) => {
      const column = y * columns + x;
      return x < columns && column < count ? { kept: 0, column } : null;
    },
    isFolded: true,
  };
}

/** A width of twice the height, a power of two, so that rows of neurons start at round numbers. */
function square(count: number): number {
  return 2 ** Math.max(3, Math.ceil(Math.log2(Math.sqrt(2 * count))));
}

/** How far each value is from the middle of all, in units of the usual distance; infinite for what is
 * not finite. */
export function deviations(values: ArrayLike<number>): Float64Array {
  const middle = median(values) ?? 0;
  const distance = Float64Array.from(values, (value) => Math.abs(value - middle));
  // Of a normal distribution, this is the standard deviation.
  const usual = (median(distance) ?? 0) * 1.4826;
  const finite = distance.filter(Number.isFinite);
  const unit =
    usual || finite.reduce((sum, each) => sum + each, 0) / Math.max(1, finite.length) || 1;
  return distance.map((each) => (Number.isFinite(each) ? each / unit : Number.POSITIVE_INFINITY));
}

export interface RowStatistics {
  mean: number;
  std: number;
  absMax: number;
  broken: number;
}

/** Of the kept values of one sample: those that are finite. */
export function rowStatistics(values: ArrayLike<number>): RowStatistics {
  const finite = Array.from(values).filter(Number.isFinite);
  const mean = finite.reduce((sum, value) => sum + value, 0) / finite.length;
  const square = finite.reduce((sum, value) => sum + (value - mean) ** 2, 0) / finite.length;
  const absMax = finite.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return { mean, std: Math.sqrt(square), absMax, broken: values.length - finite.length };
}
