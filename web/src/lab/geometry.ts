import type { Pair } from "./picture";

/** First and last cell along each dimension after the first, which counts channels. */
export type Box = [first: number, last: number][];

/** Where one cell is. */
export function boxOf(shape: readonly number[], cell: number): Box {
  const box: Box = [];
  let rest = cell;
  for (const size of shape.slice(1).reverse()) {
    box.unshift([rest % size, rest % size]);
    rest = Math.floor(rest / size);
  }
  return box;
}

/** A box moved down and to the right. */
export function moved(box: Box, [down, right]: readonly [number, number]): Box {
  const along = box.map((_, dim) =>
    dim === box.length - 1 ? right : dim === box.length - 2 ? down : 0,
  );
  return box.map(([first, last], dim) => [first + along[dim]!, last + along[dim]!]);
}

/** The rows and columns of a box that are seen in one slice of a layer; null where there are none. */
export function seenIn(
  shape: readonly number[],
  slice: number,
  box: Box,
): { x: number; y: number; columns: number; rows: number } | null {
  if (shape.length < 2 || box.length !== shape.length - 1) return null;
  let rest = slice;
  for (let dim = shape.length - 3; dim >= 1; dim--) {
    const at = rest % shape[dim]!;
    rest = Math.floor(rest / shape[dim]!);
    const [first, last] = box[dim - 1]!;
    if (at < first || at > last) return null;
  }
  const [height, width] = shape.slice(-2) as [number, number];
  // Of a layer without rows, each channel is one.
  const [top, bottom] = box.at(-2) ?? [0, height - 1];
  const [left, right] = box.at(-1)!;
  const y = Math.max(0, top);
  const x = Math.max(0, left);
  const rows = Math.min(height - 1, bottom) - y + 1;
  const columns = Math.min(width - 1, right) - x + 1;
  return rows > 0 && columns > 0 ? { x, y, columns, rows } : null;
}

/** Where some cells of one layer are in another: what they read, or what reads them.
 *
 * Null where the geometry between the layers is not known. */
export function corresponding(
  pairs: readonly Pair[],
  names: readonly string[],
  from: string,
  to: string,
  box: Box,
): Box | null {
  const start = names.indexOf(from);
  const end = names.indexOf(to);
  let found: Box | null = box;
  for (let n = start; n > end && found; n--)
    found = step(pairs, names[n - 1]!, names[n]!, found, read);
  for (let n = start; n < end && found; n++)
    found = step(pairs, names[n]!, names[n + 1]!, found, readBy);
  return found;
}

type Along = (
  range: [number, number],
  span: { scale: number; low: number; high: number },
) => [number, number];

function step(
  pairs: readonly Pair[],
  source: string,
  sink: string,
  box: Box,
  along: Along,
): Box | null {
  const pair = pairs.find((each) => each.source === source && each.sink === sink);
  if (!pair?.reach || pair.reach.length !== box.length) return null;
  return box.map((range, dim) => along(range, pair.reach![dim]!));
}

const read: Along = ([first, last], { scale, low, high }) => [
  Math.ceil(scale * first + low - 1e-9),
  Math.floor(scale * last + high + 1e-9),
];

const readBy: Along = ([first, last], { scale, low, high }) => [
  Math.ceil((first - high) / scale - 1e-9),
  Math.floor((last - low) / scale + 1e-9),
];
