import { formatTick } from "./format";
import { isSameRounded, paddedRange, plottable } from "./plot";
import { fullRange, quantileRange, type Range } from "./ranges";
import { axisTicks, integerTicks, logTicks } from "./ticks";

/** One line of a plot. */
export interface Line {
  name: string;
  /** The name of one of the page's colours. */
  colour: string;
  x: ArrayLike<number>;
  y: ArrayLike<number>;
  /** What was smoothed: drawn faintly behind. */
  raw?: ArrayLike<number>;
  /** Points that belong to nothing before or after them. */
  isDots?: boolean;
}

/** Something that happened, above the lines. */
export interface PlotMark {
  x: number;
  colour: string;
  text: string;
}

/** The axis from left to right. */
export interface XAxis {
  unit: string;
  low: number;
  high: number;
  ticks: (low: number, high: number, count: number) => number[];
  format: (value: number) => string;
}

export function stepAxis(
  [low, high]: readonly [number, number],
  format: (v: number) => string,
): XAxis {
  return { unit: "step", low, high: Math.max(low + 1, high), ticks: integerTicks, format };
}

/** Okabe–Ito, in the order in which neighbours differ most. */
export const LINE_COLOURS = [
  "--line-0",
  "--line-1",
  "--line-2",
  "--line-3",
  "--line-4",
  "--line-5",
  "--line-6",
];

export function lineColour(index: number): string {
  return LINE_COLOURS[index % LINE_COLOURS.length]!;
}

/** An exponential mean that starts at the first value; what is not finite stays and changes nothing. */
export function smooth(values: ArrayLike<number>, weight: number): Float64Array {
  const smoothed = new Float64Array(values.length);
  let mean = 0;
  let trust = 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (!Number.isFinite(value)) {
      smoothed[i] = value;
      continue;
    }
    trust = weight * trust + (1 - weight);
    // By differences: what does not change stays as it is, to the last digit.
    mean += ((1 - weight) / trust) * (value - mean);
    smoothed[i] = mean;
  }
  return smoothed;
}

/** Beyond this multiple of the middle's span, values are outliers, and get marks instead of room. */
const OUTSIDE = 1;
const TAIL = 0.02;

/** The range of the y axis: of all values, or of all but outliers. */
export function rangeOf(
  values: ArrayLike<number>,
  isLog: boolean,
  isRobust: boolean,
): [number, number] {
  const full = fullRange(values);
  if (!full) return isLog ? [0.1, 1] : [0, 1];
  const kept = isRobust ? withoutOutliers(values, full, isLog) : full;
  return paddedRange(kept.low, kept.high, isLog);
}

function withoutOutliers(values: ArrayLike<number>, full: Range, isLog: boolean): Range {
  const to = isLog ? Math.log : (v: number) => v;
  const from = isLog ? Math.exp : (v: number) => v;
  const middle = quantileRange(values, TAIL, 1 - TAIL)!;
  const room = (to(middle.high) - to(middle.low)) * OUTSIDE;
  // Where all but a few are the same, nothing tells what would be far from them.
  if (room === 0 || isSameRounded(middle.low, middle.high)) return full;
  return {
    low: Math.max(full.low, from(to(middle.low) - room)),
    high: Math.min(full.high, from(to(middle.high) + room)),
  };
}

/** All that lines have on the y axis, faint ones too. */
export function allValues(lines: readonly Line[], isLog: boolean): Float64Array {
  const all = lines.flatMap(({ y, raw }) => (raw ? [y, raw] : [y]));
  const found = new Float64Array(all.reduce((sum, { length }) => sum + length, 0));
  let count = 0;
  for (const values of all) {
    for (let i = 0; i < values.length; i++) {
      const value = values[i]!;
      if (Number.isFinite(value) && (!isLog || value > 0)) found[count++] = value;
    }
  }
  return found.subarray(0, count);
}

/** Whether two lines have their points at the same places. */
export function isSamePlaces(one: ArrayLike<number>, other: ArrayLike<number>): boolean {
  if (one === other) return true;
  if (one.length !== other.length) return false;
  for (let i = 0; i < one.length; i++) if (one[i] !== other[i]) return false;
  return true;
}

export function yTicks(low: number, high: number, isLog: boolean, count = 3): number[] {
  return isLog ? logTicks(low, high, count + 1) : axisTicks(low, high, count);
}

const GUTTER = 54;
const BOTTOM = 18;
const LEGEND = 16;
const RIGHT = 8;

/** Draws lines with their axes, for a picture that is saved. */
export function drawLines(
  pen: CanvasRenderingContext2D,
  style: (name: string) => string,
  size: { width: number; height: number },
  lines: readonly Line[],
  axis: XAxis,
  { isLog, range: [low, high] }: { isLog: boolean; range: [number, number] },
): void {
  const top = (lines.length > 1 ? LEGEND : 0) + 4;
  const bottom = size.height - BOTTOM;
  const to = isLog ? Math.log : (v: number) => v;
  const x = (v: number) =>
    GUTTER + ((v - axis.low) / (axis.high - axis.low)) * (size.width - GUTTER - RIGHT);
  const y = (v: number) => bottom - ((to(v) - to(low)) / (to(high) - to(low))) * (bottom - top);
  pen.font = `10px ${style("--font")}`;
  if (lines.length > 1) drawLegend(pen, style, lines);
  pen.textBaseline = "middle";
  for (const tick of yTicks(low, high, isLog)) {
    pen.fillStyle = style("--grid");
    pen.fillRect(GUTTER, y(tick) - 0.5, size.width - GUTTER - RIGHT, 1);
    pen.fillStyle = style("--dim");
    pen.textAlign = "right";
    pen.fillText(formatTick(tick), GUTTER - 6, y(tick));
  }
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  for (const tick of axis.ticks(axis.low, axis.high, Math.max(1, Math.floor(size.width / 90)))) {
    pen.fillText(axis.format(tick), x(tick), size.height - 4);
  }
  pen.textAlign = "left";
  pen.fillText(axis.unit, 16, size.height - 4);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, top, size.width - GUTTER - RIGHT, bottom - top);
  pen.clip();
  for (const line of lines) {
    if (line.raw) trace(pen, style(line.colour), 0.3, line, plottable(line.raw, isLog), x, y);
    trace(pen, style(line.colour), 1, line, plottable(line.y, isLog), x, y);
  }
  pen.restore();
}

function trace(
  pen: CanvasRenderingContext2D,
  colour: string,
  alpha: number,
  line: Line,
  values: (number | null)[],
  x: (v: number) => number,
  y: (v: number) => number,
): void {
  pen.globalAlpha = alpha;
  pen.strokeStyle = colour;
  pen.fillStyle = colour;
  pen.lineWidth = 1.2;
  pen.beginPath();
  let isOpen = false;
  for (const [i, value] of values.entries()) {
    if (value !== null && line.isDots) pen.fillRect(x(line.x[i]!) - 1, y(value) - 1, 2, 2);
    else if (value !== null && isOpen) pen.lineTo(x(line.x[i]!), y(value));
    else if (value !== null) pen.moveTo(x(line.x[i]!), y(value));
    isOpen = value !== null;
  }
  if (!line.isDots) pen.stroke();
  pen.globalAlpha = 1;
}

function drawLegend(
  pen: CanvasRenderingContext2D,
  style: (name: string) => string,
  lines: readonly Line[],
): void {
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  let left = GUTTER;
  for (const { name, colour } of lines) {
    pen.fillStyle = style(colour);
    pen.fillRect(left, 5, 8, 3);
    pen.fillStyle = style("--text");
    pen.fillText(name, left + 12, 7);
    left += pen.measureText(name).width + 28;
  }
}
