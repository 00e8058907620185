import type { RampName } from "./colour";
import { formatShare, formatShort, formatTick } from "./format";
import { fullRange, highestBeforeGap, quantileRange, type Range, robustRange } from "./ranges";
import type { StatisticKind } from "./statistics";
import { logTicks, niceTicks } from "./ticks";

export type ScaleName = "linear" | "robust" | "log" | "relative";

export interface Tick {
  at: number;
  label: string;
}

/** From a value to a place between 0 and 1 on a colour ramp. */
export interface ColourScale {
  name: ScaleName;
  ramp: RampName;
  low: number;
  high: number;
  /** Where a value is on the ramp; `reference` is the middle of its row, for the relative scale. */
  place: (value: number, reference: number) => number;
  ticks: Tick[];
  /** The lowest and the highest value that have a colour of their own. */
  ends: [Tick, Tick];
}

export function defaultScale(kind: StatisticKind): ScaleName {
  return kind === "magnitude" ? "log" : kind === "signed" ? "robust" : "linear";
}

export function scalesFor(kind: StatisticKind): ScaleName[] {
  if (kind === "share") return ["linear", "log"];
  return kind === "signed" ? ["robust", "linear", "log"] : ["log", "linear", "robust", "relative"];
}

export function colourScale(
  kind: StatisticKind,
  name: ScaleName,
  values: ArrayLike<number>,
): ColourScale {
  const full = fullRange(values);
  const scale = scaleOf(kind, name, values, full);
  if (name === "relative") return { ...scale, ends: [scale.ticks[0]!, scale.ticks.at(-1)!] };
  const label = kind === "share" ? formatShare : formatShort;
  // Few values may lie beyond the ramp, and on a logarithmic one 0 does; it says so.
  const isSigned = kind === "signed";
  const highest =
    full === null ? scale.high : isSigned ? Math.max(full.high, -full.low) : full.high;
  const isHighCut = highest > scale.high;
  const isLowCut = isSigned ? isHighCut : full !== null && full.low < scale.low;
  const low = (isLowCut ? "≤ " : "") + label(scale.low);
  const high = (isHighCut ? "≥ " : "") + label(scale.high);
  return {
    ...scale,
    ends: [
      { at: 0, label: low },
      { at: 1, label: high },
    ],
  };
}

/** A scale that was made for other values says where these lie beyond its ends. */
export function withBeyond(scale: ColourScale, values: ArrayLike<number | null>): ColourScale {
  const isBeyond = [false, false];
  for (let i = 0; i < values.length; i++) {
    const place = scale.place(values[i] ?? Number.NaN, Number.NaN);
    if (place < 0) isBeyond[0] = true;
    else if (place > 1 + 1e-9) isBeyond[1] = true;
  }
  const [low, high] = scale.ends;
  const mark = (end: Tick, sign: string, is: boolean | undefined) =>
    is && !end.label.startsWith(sign) ? { ...end, label: `${sign} ${end.label}` } : end;
  return { ...scale, ends: [mark(low, "≤", isBeyond[0]), mark(high, "≥", isBeyond[1])] };
}

type WithoutEnds = Omit<ColourScale, "ends">;

function scaleOf(
  kind: StatisticKind,
  name: ScaleName,
  values: ArrayLike<number>,
  full: Range | null,
): WithoutEnds {
  if (kind === "signed")
    return name === "log" ? signedLog(values, full) : symmetric(name, values, full);
  if (name === "relative") return relative();
  if (name === "log") return logarithmic(kind, values, full);
  return linear(kind, name, values, full);
}

function linear(
  kind: StatisticKind,
  name: ScaleName,
  values: ArrayLike<number>,
  full: Range | null,
): WithoutEnds {
  const isRobust = name === "robust";
  const found = isRobust ? robustRange(values, 0.01) : full;
  const low = isRobust ? (found?.low ?? 0) : 0;
  const top = kind === "share" ? Math.min(1, niceCeiling(found?.high ?? 1)) : (found?.high ?? 1);
  const high = top > low ? top : low + 1;
  const label = kind === "share" ? formatShare : formatTick;
  return {
    name,
    ramp: kind === "share" ? "cividis" : "viridis",
    low,
    high,
    place: (value) => (value - low) / (high - low),
    ticks: niceTicks(low, high, 4).map((v) => ({ at: (v - low) / (high - low), label: label(v) })),
  };
}

/** A few values that are so many times higher than all others would take the colours from them. */
const FAR = 100;
/** So would up to this share of them, such as masks of the lowest number there is, that are far higher still. */
const MASKED = 0.15;
const FARTHER = 1e6;

function logarithmic(
  kind: StatisticKind,
  values: ArrayLike<number>,
  full: Range | null,
): WithoutEnds {
  const isPositive = (value: number) => value > 0;
  const found = quantileRange(values, 0.002, 0.998, isPositive);
  const highest = full?.high ?? 1;
  const common = Math.min(found?.high ?? 1, highestBeforeGap(values, MASKED, FARTHER) ?? 1);
  const high = highest > FAR * common ? common : Math.max(highest, common);
  const low = Math.min(found?.low ?? 0.1, high / 10);
  const base = Math.log(low);
  const span = Math.log(high) - base;
  const place = (value: number) => (value > 0 ? (Math.log(value) - base) / span : 0);
  const label = kind === "share" ? formatShare : formatTick;
  return {
    name: "log",
    ramp: kind === "share" ? "cividis" : "viridis",
    low,
    high,
    place,
    ticks: logTicks(low, high, 5).map((v) => ({ at: place(v), label: label(v) })),
  };
}

function symmetric(name: ScaleName, values: ArrayLike<number>, full: Range | null): WithoutEnds {
  const found = name === "robust" ? robustRange(values, 0.02) : full;
  const high = Math.max(Math.abs(found?.low ?? 0), Math.abs(found?.high ?? 0)) || 1;
  const place = (value: number) => 0.5 + value / (2 * high);
  const ticks = niceTicks(-high, high, 4).map((v) => ({ at: place(v), label: formatTick(v) }));
  return { name, ramp: "diverging", low: -high, high, place, ticks };
}

function signedLog(values: ArrayLike<number>, full: Range | null): WithoutEnds {
  const high = Math.max(Math.abs(full?.low ?? 0), Math.abs(full?.high ?? 0)) || 1;
  const magnitudes = Float64Array.from({ length: values.length }, (_, i) => Math.abs(values[i]!));
  const low = Math.min(quantileRange(magnitudes, 0.05, 1, (v) => v > 0)?.low ?? 0, high / 10);
  const base = Math.log(low || high / 10);
  const span = Math.log(high) - base;
  const place = (value: number) => {
    const depth = value === 0 ? 0 : Math.max(0, (Math.log(Math.abs(value)) - base) / span);
    return 0.5 + (Math.sign(value) * depth) / 2;
  };
  const powers = logTicks(low || high / 10, high, 2);
  const signed = [...powers.map((v) => -v).reverse(), 0, ...powers];
  const ticks = signed.map((v) => ({ at: place(v), label: formatTick(v) }));
  return { name: "log", ramp: "diverging", low: -high, high, place, ticks };
}

/** How many times the row's own middle a value is: what changed, whatever its size. */
function relative(): WithoutEnds {
  const doublings = 4;
  const place = (value: number, reference: number) =>
    value > 0 && reference > 0 ? 0.5 + Math.log2(value / reference) / (2 * doublings) : 0;
  const ticks = [-4, -2, 0, 2, 4].map((power) => ({
    at: 0.5 + power / (2 * doublings),
    label: power === 0 ? "row's median" : power < 0 ? `÷ ${2 ** -power}` : `× ${2 ** power}`,
  }));
  return { name: "relative", ramp: "diverging", low: -doublings, high: doublings, place, ticks };
}

function niceCeiling(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((limit) => limit >= value) ?? value;
}
