export interface Range {
  low: number;
  high: number;
}

const SAMPLE = 10_000;

/** The range of the finite values, or null if there are none. */
export function fullRange(values: ArrayLike<number>): Range | null {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (value < low && value !== Number.NEGATIVE_INFINITY) low = value;
    if (value > high && value !== Number.POSITIVE_INFINITY) high = value;
  }
  return low <= high ? { low, high } : null;
}

/** The finite values that `keep` lets pass, ascending; a sample of them if there are many. */
function sortedSample(values: ArrayLike<number>, keep: (value: number) => boolean): Float64Array {
  const stride = Math.max(1, Math.floor(values.length / SAMPLE));
  const sample = new Float64Array(Math.ceil(values.length / stride));
  let count = 0;
  for (let i = 0; i < values.length; i += stride) {
    const value = values[i]!;
    if (Number.isFinite(value) && keep(value)) sample[count++] = value;
  }
  return sample.subarray(0, count).sort();
}

/** The range between two quantiles of the finite values that `keep` lets pass; of a sample if there are many. */
export function quantileRange(
  values: ArrayLike<number>,
  lowShare: number,
  highShare: number,
  keep: (value: number) => boolean = () => true,
): Range | null {
  const sorted = sortedSample(values, keep);
  if (sorted.length === 0) return null;
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))]!;
  return { low: at(lowShare), high: at(highShare) };
}

/** The greatest of the positive values that is not beyond a gap: no value before the last `share` of them is so
 * many `times` greater than the one before it. */
export function highestBeforeGap(
  values: ArrayLike<number>,
  share: number,
  times: number,
): number | null {
  const sorted = sortedSample(values, (value) => value > 0);
  for (let i = Math.floor((1 - share) * (sorted.length - 1)); i + 1 < sorted.length; i++) {
    if (sorted[i + 1]! > times * sorted[i]!) return sorted[i]!;
  }
  return sorted.at(-1) ?? null;
}

/** So many times the range of its middle half beyond that half, a value is far from the others. */
const FAR = 3;
/** At most this share of the values, at each end, is called far. */
const MOST_FAR = 0.05;

/** The range without the most extreme values: a share at each end, and more where those are far from all others,
 * as the gradient of a loss is, which is 1 at all steps. */
export function robustRange(values: ArrayLike<number>, share: number): Range | null {
  const outer = quantileRange(values, share, 1 - share);
  const inner = quantileRange(values, MOST_FAR, 1 - MOST_FAR);
  const middle = quantileRange(values, 0.25, 0.75);
  if (!outer || !inner || !middle) return null;
  const reach = FAR * (middle.high - middle.low);
  return {
    low: Math.max(outer.low, Math.min(inner.low, middle.low - reach)),
    high: Math.min(outer.high, Math.max(inner.high, middle.high + reach)),
  };
}

export function median(values: ArrayLike<number>): number | null {
  return quantileRange(values, 0.5, 0.5)?.low ?? null;
}
