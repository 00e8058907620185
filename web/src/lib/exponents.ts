import type { NumberFormat, SiteExponents } from "../connectors/analyses";

/** From a power of two to a place between 0 and 1, shared by histograms that stand side by side. */
export interface ExponentAxis {
  low: number;
  high: number;
  /** Exponents that have a label. */
  ticks: number[];
}

const FEWEST = 16;

/** The exponents of all sites, and the ends of formats where they are not far from those. */
export function exponentAxis(
  sites: readonly Pick<SiteExponents, "exponents">[],
  formats: readonly NumberFormat[],
): ExponentAxis {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const { exponents } of sites) {
    for (const exponent of exponents.exponent) {
      low = Math.min(low, exponent);
      high = Math.max(high, exponent);
    }
  }
  if (low > high) [low, high] = [-8, 8];
  const room = Math.max(4, Math.round((high - low) * 0.4));
  const ends = formats.flatMap((format) => [lowest(format), highest(format)]);
  for (const end of ends) {
    if (end >= low - room && end < low) low = end;
    if (end <= high + room && end > high) high = end;
  }
  const missing = Math.max(0, FEWEST - (high - low + 1));
  low -= Math.ceil(missing / 2) + 1;
  high += Math.floor(missing / 2) + 1;
  return { low, high, ticks: exponentTicks(low, high, 6) };
}

/** The exponents of the least and the greatest number that a format holds. */
export function lowest(format: NumberFormat): number {
  return Math.floor(Math.log2(format.underflow * 2));
}

export function highest(format: NumberFormat): number {
  return Math.floor(Math.log2(format.overflow) - 1e-9);
}

export function exponentTicks(low: number, high: number, count: number): number[] {
  const apart =
    [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256].find(
      (step) => (high - low) / step <= count,
    ) ?? 512;
  const ticks: number[] = [];
  for (let tick = Math.ceil(low / apart) * apart; tick <= high; tick += apart) ticks.push(tick + 0);
  return ticks;
}

/** How many elements have each exponent of the axis, whatever their sign. */
export function countsOn(
  axis: ExponentAxis,
  { exponents }: Pick<SiteExponents, "exponents">,
): number[] {
  const counts = new Array<number>(axis.high - axis.low + 1).fill(0);
  for (const [i, exponent] of exponents.exponent.entries()) {
    const place = exponent - axis.low;
    if (place >= 0 && place < counts.length)
      counts[place]! += exponents.negative[i]! + exponents.positive[i]!;
  }
  return counts;
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** `2¹²`, `2⁻²⁴`. */
export function powerOfTwo(exponent: number): string {
  const digits = [...String(Math.abs(exponent))].map((digit) => SUPERSCRIPTS[Number(digit)]!);
  return `2${exponent < 0 ? "⁻" : ""}${digits.join("")}`;
}

/** The names of formats as people write them, short enough for a table. */
export function shortFormat(name: string): string {
  return name
    .replace(/^float(\d+)_/, (_, bits: string) => (bits === "8" ? "fp8 " : `fp${bits} `))
    .replace(/^bfloat(\d+)$/, "bf$1")
    .replace(/^float(\d+)$/, "fp$1");
}

export const FORMAT_COLOURS = [
  "--line-2",
  "--line-1",
  "--line-3",
  "--line-0",
  "--line-4",
  "--line-6",
  "--line-5",
];

const AXIS = 14;
const RANGE = 5;
const APART = 12;
const SIDE = 26;

export interface ExponentLook {
  width: number;
  height: number;
  axis: ExponentAxis;
  formats: readonly NumberFormat[];
  /** The format whose losses are coloured, if any. */
  judged: NumberFormat | null;
}

export function rangesHeight(formats: number): number {
  return formats * RANGE + (formats > 0 ? 3 : 0);
}

/** Bars by exponent, what is zero, infinite or NaN apart from them, and below them what formats hold. */
export function drawExponents(
  pen: CanvasRenderingContext2D,
  style: (name: string) => string,
  site: SiteExponents,
  { width, height, axis, formats, judged }: ExponentLook,
): void {
  const bottom = height - AXIS - rangesHeight(formats.length);
  const left = SIDE;
  const right = width - 2 * SIDE;
  const unit = (right - left) / (axis.high - axis.low + 1);
  const x = (exponent: number) => left + (exponent - axis.low) * unit;
  const counts = countsOn(axis, site);
  const apart = [site.zeros, site.infs, site.nans];
  const most = Math.max(1, ...counts, ...apart);
  // A root keeps a bar of a thousandth in sight; the numbers below are exact.
  const tall = (count: number) =>
    count > 0 ? Math.max(1.5, Math.sqrt(count / most) * (bottom - 4)) : 0;
  for (const [i, count] of counts.entries()) {
    const exponent = axis.low + i;
    pen.fillStyle = style(barColour(exponent, judged));
    pen.fillRect(
      x(exponent),
      bottom - tall(count),
      Math.max(1, unit - (unit > 3 ? 1 : 0)),
      tall(count),
    );
  }
  pen.font = `10px ${style("--font")}`;
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  const columns: [string, number, number, string][] = [
    ["0", APART, site.zeros, "--dim"],
    ["∞", width - 2 * SIDE + APART + 2, site.infs, "--inf"],
    ["NaN", width - SIDE + APART - 1, site.nans, "--nan"],
  ];
  for (const [label, middle, count, colour] of columns) {
    pen.fillStyle = style(colour);
    pen.fillRect(middle - 5, bottom - tall(count), 10, tall(count));
    pen.fillStyle = style(count > 0 ? colour : "--faint");
    pen.fillText(label, middle, height - 3);
  }
  pen.fillStyle = style("--border-strong");
  pen.fillRect(left, bottom, right - left, 1);
  drawRanges(pen, style, formats, { x, left, right, top: bottom + 3 });
  pen.fillStyle = style("--dim");
  for (const tick of axis.ticks) {
    const at = x(tick) + unit / 2;
    if (at > left + 8 && at < right - 8) pen.fillText(powerOfTwo(tick), at, height - 3);
  }
}

function barColour(exponent: number, judged: NumberFormat | null): string {
  if (!judged) return "--line";
  if (exponent > highest(judged)) return "--bad";
  if (exponent < lowest(judged)) return "--bad";
  return exponent < Math.floor(Math.log2(judged.normal)) ? "--warn" : "--line";
}

function drawRanges(
  pen: CanvasRenderingContext2D,
  style: (name: string) => string,
  formats: readonly NumberFormat[],
  { x, left, right, top }: { x: (e: number) => number; left: number; right: number; top: number },
): void {
  const clamp = (at: number) => Math.max(left, Math.min(right, at));
  for (const [i, format] of formats.entries()) {
    pen.fillStyle = style(FORMAT_COLOURS[i % FORMAT_COLOURS.length]!);
    const [from, normal, to] = [
      lowest(format),
      Math.floor(Math.log2(format.normal)),
      highest(format) + 1,
    ].map((e) => clamp(x(e)));
    pen.globalAlpha = 0.4;
    pen.fillRect(from!, top + i * RANGE + 1, normal! - from!, RANGE - 3);
    pen.globalAlpha = 1;
    pen.fillRect(normal!, top + i * RANGE, to! - normal!, RANGE - 1);
  }
}

/** What is said where no scale is suggested. */
export function suggestionOf({
  overflow,
  underflow,
  subnormal,
}: {
  overflow: number;
  underflow: number;
  subnormal: number;
}): string {
  return overflow + underflow + subnormal > 0 ? "no scale helps" : "none needed";
}
