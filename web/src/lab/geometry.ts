import type { Pair } from "./picture";

/** First and last cell along each of the last dimensions. */
export type Box = [first: number, last: number][];

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
