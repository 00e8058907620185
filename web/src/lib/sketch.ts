import { formatTick } from "./format";
import type { Tick } from "./scale";
import { niceTicks } from "./ticks";

/** A histogram over sign, exponent and two mantissa bits: see the project's `schema.py`. */
export interface Sketch {
  keys: ArrayLike<number>;
  counts: ArrayLike<number>;
  zeros: number;
}

const BIAS = 1074;

/** The bounds of a bin, the lower first. */
export function sketchEdges(key: number): [low: number, high: number] {
  const magnitude = Math.abs(key) - 1;
  const quarter = magnitude % 4;
  const unit = 2 ** ((magnitude - quarter) / 4 - BIAS);
  const low = unit * (1 + quarter / 4);
  const high = unit * (1 + (quarter + 1) / 4);
  return key > 0 ? [low, high] : [-high, -low];
}

export function sketchTotal(sketch: Sketch): number {
  let total = sketch.zeros;
  for (let i = 0; i < sketch.counts.length; i++) total += sketch.counts[i]!;
  return total;
}

/** The values below which the given ascending shares of the finite elements lie. */
export function sketchQuantiles(sketch: Sketch, shares: readonly number[]): number[] {
  const total = sketchTotal(sketch);
  if (total === 0) return shares.map(() => Number.NaN);
  const bins = orderedBins(sketch);
  const found: number[] = [];
  let bin = 0;
  let below = 0;
  for (const share of shares) {
    const wanted = share * total;
    while (bin < bins.length - 1 && below + bins[bin]!.count < wanted) below += bins[bin++]!.count;
    const { low, high, count } = bins[bin]!;
    const within = count > 0 ? Math.max(0, Math.min(1, (wanted - below) / count)) : 0;
    found.push(low + (Math.min(high, Number.MAX_VALUE) - low) * within);
  }
  return found;
}

/** The bins with their bounds, in the order of the values. */
export function orderedBins({ keys, counts, zeros }: Sketch) {
  const bins: { low: number; high: number; count: number }[] = [];
  let isZeroPlaced = zeros === 0;
  for (let i = 0; i < keys.length; i++) {
    if (counts[i] === 0) continue;
    if (!isZeroPlaced && keys[i]! > 0) {
      bins.push({ low: 0, high: 0, count: zeros });
      isZeroPlaced = true;
    }
    const [low, high] = sketchEdges(keys[i]!);
    bins.push({ low, high, count: counts[i]! });
  }
  if (!isZeroPlaced) bins.push({ low: 0, high: 0, count: zeros });
  return bins;
}

export type AxisName = "log" | "linear";

/** From a value to a place between 0 (lowest) and 1 (highest). */
export interface ValueAxis {
  name: AxisName;
  place: (value: number) => number;
  ticks: Tick[];
}

/** The share of the elements other than 0 that lies in the part around 0 where a log axis is linear.
 * Small, it shows the least exponents; but then what lies on both sides of 0 is torn in two. */
const LINEAR_SHARE = { twoSided: 0.1, oneSided: 0.02 };

/** The extents of sketches that several parts of the page show at once. */
const extents = new WeakMap<readonly Sketch[], Extent>();

export function valueAxis(name: AxisName, sketches: readonly Sketch[]): ValueAxis {
  const extent = extents.get(sketches) ?? extentOf(sketches);
  extents.set(sketches, extent);
  return name === "log" ? logAxis(extent) : linearAxis(extent);
}

interface Extent {
  low: number;
  high: number;
  /** The magnitude up to which a log axis is linear. */
  linearTo: number;
  largest: number;
}

function extentOf(sketches: readonly Sketch[]): Extent {
  const counts = new Map<number, number>();
  let total = 0;
  let low = 0;
  let high = 0;
  for (const sketch of sketches) {
    for (let i = 0; i < sketch.keys.length; i++) {
      if (sketch.counts[i] === 0) continue;
      const key = sketch.keys[i]!;
      const magnitude = Math.abs(key);
      counts.set(magnitude, (counts.get(magnitude) ?? 0) + sketch.counts[i]!);
      total += sketch.counts[i]!;
      const edges = sketchEdges(key);
      low = Math.min(low, edges[0]);
      high = Math.max(high, edges[1]);
    }
  }
  if (total === 0) return { low: -1, high: 1, linearTo: 0.1, largest: 1 };
  const largest = Math.min(Math.max(-low, high), Number.MAX_VALUE);
  const share = low < 0 && high > 0 ? LINEAR_SHARE.twoSided : LINEAR_SHARE.oneSided;
  return { low, high, linearTo: magnitudeAt(counts, total * share), largest };
}

/** The magnitude below which so many elements lie. */
function magnitudeAt(counts: Map<number, number>, wanted: number): number {
  const keys = [...counts.keys()].sort((a, b) => a - b);
  let below = 0;
  for (const key of keys) {
    below += counts.get(key)!;
    if (below > wanted) return sketchEdges(key)[0];
  }
  return sketchEdges(keys.at(-1)!)[0];
}

/** Linear around 0 and logarithmic further out, without a kink between. */
function logAxis({ low, high, linearTo, largest }: Extent): ValueAxis {
  const unit = Math.min(linearTo, largest / 4);
  const bend = (value: number) => Math.asinh(value / unit);
  const bottom = low < 0 ? -bend(largest) : 0;
  const top = high > 0 ? bend(largest) : 0;
  const place = (value: number) =>
    Math.max(0, Math.min(1, (bend(value) - bottom) / (top - bottom)));
  const positive = spacedTicks(unit, largest, place);
  const values = [
    ...(low < 0 ? positive.map((v) => -v).reverse() : []),
    0,
    ...(high > 0 ? positive : []),
  ];
  const ticks = values.map((value) => ({ at: place(value), label: formatTick(value) }));
  return { name: "log", place, ticks };
}

/** The least distance between two ticks, as a share of the axis. */
const TICK_GAP = 0.09;

/** Round numbers outwards from 0, each far enough from the one before. */
function spacedTicks(unit: number, largest: number, place: (value: number) => number): number[] {
  const first = Math.floor(Math.log10(unit / 10));
  const count = Math.floor(Math.log10(largest)) - first + 1;
  const decades = Array.from({ length: count }, (_, i) => Number(`1e${first + i}`));
  const isNarrow = largest / unit < 1000;
  const candidates = decades.flatMap((power) =>
    isNarrow ? [power, 2 * power, 5 * power] : [power],
  );
  const side = Math.sign(place(largest) - place(0)) || -1;
  const kept: number[] = [];
  for (const value of candidates.sort((a, b) => a - b)) {
    const before = place(side * (kept.at(-1) ?? 0));
    if (value <= largest && Math.abs(place(side * value) - before) >= TICK_GAP) kept.push(value);
  }
  return kept;
}

function linearAxis({ low, high }: Extent): ValueAxis {
  const span = high - low || 1;
  const place = (value: number) => Math.max(0, Math.min(1, (value - low) / span));
  const ticks = niceTicks(low, high, 6).map((v) => ({ at: place(v), label: formatTick(v) }));
  return { name: "linear", place, ticks };
}

/** The sketch's elements other than 0, shared out over `rows` equal parts of the axis. */
export function rebin(sketch: Sketch, axis: ValueAxis, rows: number): Float64Array {
  const bins = new Float64Array(rows);
  for (let i = 0; i < sketch.keys.length; i++) {
    if (sketch.counts[i] === 0) continue;
    const [low, high] = sketchEdges(sketch.keys[i]!);
    spread(bins, axis.place(low) * rows, axis.place(high) * rows, sketch.counts[i]!);
  }
  return bins;
}

function spread(bins: Float64Array, from: number, to: number, count: number): void {
  const last = bins.length - 1;
  if (to - from < 1e-9) {
    bins[Math.min(last, Math.floor(from))]! += count;
    return;
  }
  for (let bin = Math.floor(from); bin <= Math.min(last, Math.ceil(to) - 1); bin++) {
    const part = Math.min(bin + 1, to) - Math.max(bin, from);
    bins[bin]! += (count * part) / (to - from);
  }
}
