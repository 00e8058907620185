import { MARKS } from "./colour";
import { formatInteger } from "./format";

/** The first and the last of some steps that follow each other. */
export type Stretch = readonly [first: number, last: number];

const HATCH = 5;
const NARROWEST = 3;

/** Where steps that cannot be read are on the axis of steps: half-way to those before and after. */
export function lostBands(lost: readonly Stretch[], recorded: readonly number[]): Stretch[] {
  return lost.map(([first, last]) => {
    const before = recorded.findLast((step) => step < first) ?? first;
    const after = recorded.find((step) => step > last) ?? last;
    return [(before + first) / 2, (last + after) / 2];
  });
}

/** What is said of a run some of whose files are damaged: shortly, and all of it. */
export function damageNote(
  lost: readonly Stretch[],
  problems: number,
): { short: string; whole: string } | null {
  if (lost.length === 0 && problems === 0) return null;
  const where = "the overview says which files are damaged and what to do";
  if (lost.length === 0)
    return { short: "some damaged", whole: `Something may be missing here: ${where}.` };
  const names = lost.map(([first, last]) =>
    first === last ? formatInteger(first) : `${formatInteger(first)} – ${formatInteger(last)}`,
  );
  const isOne = lost.length === 1 && lost[0]![0] === lost[0]![1];
  const what = isOne ? "step" : "steps";
  return {
    short: names.length > 1 ? `some ${what} damaged` : `${what} ${names[0]} damaged`,
    whole: `Hatched: ${what} ${names.join(", ")} cannot be read; ${where}.`,
  };
}

/** Columns over places, with a place more in each stretch at which none has a value: lines end there. */
export function withGaps(
  at: readonly number[],
  columns: readonly (number | null)[][],
  lost: readonly Stretch[],
): (number | null)[][] {
  const gaps = lost
    .map(([first, last]) => (first + last) / 2)
    .filter((gap) => gap > at[0]! && gap < at.at(-1)!);
  if (gaps.length === 0) return [[...at], ...columns];
  const order = [
    ...at.map((place, i) => ({ place, i })),
    ...gaps.map((place) => ({ place, i: -1 })),
  ];
  order.sort((one, other) => one.place - other.place);
  return [
    order.map(({ place }) => place),
    ...columns.map((column) => order.map(({ i }) => (i < 0 ? null : column[i]!))),
  ];
}

/** Draws a stretch as heatmaps draw what is missing. Lengths are in the pen's own units. */
export function drawLost(
  pen: CanvasRenderingContext2D,
  [left, right]: readonly [number, number],
  [top, bottom]: readonly [number, number],
  dark: boolean,
  unit = 1,
): void {
  const middle = (left + right) / 2;
  const half = Math.max((right - left) / 2, (NARROWEST * unit) / 2);
  const marks = MARKS[dark ? "dark" : "light"];
  pen.save();
  pen.beginPath();
  pen.rect(middle - half, top, 2 * half, bottom - top);
  pen.clip();
  pen.fillStyle = `#${marks.paper}`;
  pen.fillRect(middle - half, top, 2 * half, bottom - top);
  pen.strokeStyle = `#${marks.missing}`;
  pen.lineWidth = unit;
  pen.beginPath();
  const high = bottom - top;
  const gap = HATCH * unit;
  for (let x = Math.floor((middle - half) / gap) * gap; x < middle + half + high; x += gap) {
    pen.moveTo(x, top);
    pen.lineTo(x - high, bottom);
  }
  pen.stroke();
  pen.restore();
}
