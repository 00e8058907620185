// A module of its own: whoever asks for data needs it, and nothing else of sketches.
import type { Sketch } from "./sketch";

/** So many cells a table of bins may have: beyond, most of them would be empty. */
const MOST_CELLS = 1 << 18;

/** The same sketches with the same bins, in one table: what a history takes then depends on which values
 * were ever seen, and not on how many steps are in a column. */
export function withSharedBins<T extends Sketch>(sketches: readonly T[]): T[] {
  const seen = new Set<number>();
  for (const { keys } of sketches) for (let i = 0; i < keys.length; i++) seen.add(keys[i]!);
  if (seen.size * sketches.length > MOST_CELLS) return [...sketches];
  const keys = Int16Array.from(seen).sort();
  const placeOf = new Map(Array.from(keys, (key, place) => [key, place]));
  const table = new Float64Array(keys.length * sketches.length);
  return sketches.map((sketch, row) => {
    const start = row * keys.length;
    for (let i = 0; i < sketch.keys.length; i++) {
      table[start + placeOf.get(sketch.keys[i]!)!] = sketch.counts[i]!;
    }
    return { ...sketch, keys, counts: table.subarray(start, start + keys.length) };
  });
}
