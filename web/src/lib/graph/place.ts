import type { Layering } from "./layers";

export interface Size {
  /** Across the rows, and along the flow. */
  across: number;
  along: number;
}

export interface Placement {
  /** The middle of each thing and bend across the rows, from 0. */
  middle: Float64Array;
  /** Where each begins along the flow, from 0; a bend has the whole row. */
  start: Float64Array;
  along: Float64Array;
  across: number;
  length: number;
}

export interface Gaps {
  beside: number;
  between: number;
}

/** Where on something an edge begins or ends across the rows, as seen from its middle. */
export type Anchors = (edge: number) => readonly [source: number, sink: number];

const BEND_WIDTH = 10;
const SWEEPS = 24;
/** How much straight lines are worth: between things that stand in neighbouring rows, and along one
 * edge, more than from a thing to the bend of an edge that passes others by. */
const STRAIGHT = 4;

/** Puts the rows of a layering one after another, and each thing as near as can be to the middle of
 * what it is tied to. Nothing overlaps. */
export function place(
  layering: Layering,
  sizes: readonly Size[],
  gaps: Gaps,
  anchors: Anchors = () => [0, 0],
): Placement {
  const { rows, size } = layering;
  const width = Float64Array.from({ length: size }, (_, i) => sizes[i]?.across ?? BEND_WIDTH);
  const middle = new Float64Array(size);
  for (const row of rows) packRow(row, width, middle, gaps.beside);
  const ties = tiesOf(layering, sizes.length, anchors);
  align(layering, ties, width, middle, gaps.beside);
  straighten(layering, ties, width, middle, gaps.beside);
  let left = Number.POSITIVE_INFINITY;
  let right = Number.NEGATIVE_INFINITY;
  for (let i = 0; i < size; i++) {
    left = Math.min(left, middle[i]! - width[i]! / 2);
    right = Math.max(right, middle[i]! + width[i]! / 2);
  }
  for (let i = 0; i < size; i++) middle[i] = Math.round(middle[i]! - left);
  const { start, along, length } = placeRows(rows, sizes, size, gaps.between);
  return { middle, start, along, length, across: size > 0 ? Math.ceil(right - left) : 0 };
}

function placeRows(rows: readonly number[][], sizes: readonly Size[], size: number, gap: number) {
  const start = new Float64Array(size);
  const along = new Float64Array(size);
  let at = 0;
  for (const row of rows) {
    const tallest = Math.max(0, ...row.map((index) => sizes[index]?.along ?? 0));
    for (const index of row) {
      along[index] = sizes[index]?.along ?? tallest;
      start[index] = Math.round(at + (tallest - along[index]!) / 2);
    }
    at += tallest + gap;
  }
  return { start, along, length: Math.max(0, at - gap) };
}

function packRow(row: readonly number[], width: Float64Array, middle: Float64Array, gap: number) {
  const total = row.reduce((sum, index) => sum + width[index]! + gap, -gap);
  let at = -total / 2;
  for (const index of row) {
    middle[index] = at + width[index]! / 2;
    at += width[index]! + gap;
  }
}

interface Tie {
  other: number;
  /** Where this would be if the line were straight, as seen from the other. */
  offset: number;
  weight: number;
}

interface Ties {
  above: Tie[][];
  below: Tie[][];
}

function tiesOf(
  { segments, edgeOfSegment, size }: Layering,
  count: number,
  anchors: Anchors,
): Ties {
  const above: Tie[][] = Array.from({ length: size }, () => []);
  const below: Tie[][] = Array.from({ length: size }, () => []);
  for (const [i, [upper, lower]] of segments.entries()) {
    const [source, sink] = anchors(edgeOfSegment[i]!);
    const offset = (upper < count ? source : 0) - (lower < count ? sink : 0);
    const weight = upper < count === lower < count ? STRAIGHT : 1;
    above[lower]!.push({ other: upper, offset, weight });
    below[upper]!.push({ other: lower, offset: -offset, weight });
  }
  return { above, below };
}

function align(
  { rows }: Layering,
  { above, below }: Ties,
  width: Float64Array,
  middle: Float64Array,
  gap: number,
): void {
  const upwards = rows.slice().reverse();
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const isDown = sweep % 2 === 0;
    // At first only with what was placed before, so that all finds its side; then with both.
    const isEarly = sweep < 4;
    for (const row of isDown ? rows : upwards) {
      const wanted: number[] = [];
      for (const [i, index] of row.entries()) {
        const all = [...above[index]!, ...below[index]!];
        const ties = isEarly ? (isDown ? above : below)[index]! : all;
        const before = all.length === 0 ? row[i - 1] : undefined;
        // What is tied to nothing stays beside what it stands beside.
        const beside =
          before === undefined
            ? middle[index]!
            : wanted[i - 1]! + (width[before]! + width[index]!) / 2 + gap;
        wanted.push(straightest(ties, middle) ?? beside);
      }
      spread(row, wanted, width, middle, gap);
    }
  }
}

/** Two things that are tied to each other alone, on that side, stand in one line. */
function straighten(
  { rows }: Layering,
  { above, below }: Ties,
  width: Float64Array,
  middle: Float64Array,
  gap: number,
): void {
  for (const [order, near, far] of [
    [rows, above, below],
    [rows.slice().reverse(), below, above],
  ] as const) {
    for (const row of order) {
      const wanted = row.map((index) => {
        const [tie, ...more] = near[index]!;
        const isAlone = tie !== undefined && more.length === 0 && far[tie.other]!.length === 1;
        return isAlone ? middle[tie.other]! + tie.offset : middle[index]!;
      });
      spread(row, wanted, width, middle, gap);
    }
  }
}

function straightest(ties: readonly Tie[], middle: Float64Array): number | null {
  let sum = 0;
  let weights = 0;
  for (const { other, offset, weight } of ties) {
    sum += weight * (middle[other]! + offset);
    weights += weight;
  }
  return weights > 0 ? sum / weights : null;
}

/** The places nearest to the wanted ones (in squares) that keep the order and the distances: blocks
 * that would overlap are moved as one (pool adjacent violators). */
function spread(
  row: readonly number[],
  wanted: readonly number[],
  width: Float64Array,
  middle: Float64Array,
  gap: number,
): void {
  const offset: number[] = [];
  const blocks: { sum: number; count: number }[] = [];
  for (const [i, index] of row.entries()) {
    const before = row[i - 1];
    offset.push(
      before === undefined ? 0 : offset[i - 1]! + (width[before]! + width[index]!) / 2 + gap,
    );
    blocks.push({ sum: wanted[i]! - offset[i]!, count: 1 });
    while (blocks.length > 1 && average(blocks.at(-2)!) > average(blocks.at(-1)!)) {
      const last = blocks.pop()!;
      blocks.at(-1)!.sum += last.sum;
      blocks.at(-1)!.count += last.count;
    }
  }
  let i = 0;
  for (const block of blocks) {
    for (let n = 0; n < block.count; n++, i++) middle[row[i]!] = average(block) + offset[i]!;
  }
}

function average({ sum, count }: { sum: number; count: number }): number {
  return sum / count;
}
