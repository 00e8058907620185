/** Marks that turn the direction of all that comes behind them, so that names would lie. */
const TURNS = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** A name in which nothing that cannot be seen changes what is seen.
 *
 * `legible("a\u202eb")` is `"a\\u202eb"`. */
export function legible(name: string): string {
  return name.replace(TURNS, (mark) => `\\u${mark.charCodeAt(0).toString(16)}`);
}

/** Cuts the middle out of a name that is longer than `length`: both ends of a name tell it apart.
 * The end gets the larger half, as the last parts of a qualified name say most. */
export function truncateMiddle(name: string, length: number): string {
  const text = legible(name);
  if (text.length <= length) return text;
  if (length <= 1) return "…";
  return shortenParts(text, length) ?? cut(text, length, Math.floor((length - 1) * 0.4));
}

/** What is left of a part of a path, and of the last one, which says most. */
const LEAST_PART = 3;
const LEAST_LAST = 8;

/** Cuts the parts of a longer path instead, from the first on: between them stand the numbers of blocks, without
 * which `encoder.layers.0.attention.dropout` is any layer's. Null where that does not save enough. */
function shortenParts(path: string, length: number): string | null {
  const [module = "", ...place] = path.split(":");
  const parts = module.split(".");
  if (parts.length < 4) return null;
  parts.push([parts.pop(), ...place].join(":"));
  let excess = path.length - length;
  for (const [i, part] of parts.entries()) {
    const least = i === parts.length - 1 ? LEAST_LAST : LEAST_PART;
    // One character less, with a mark in its place, would save nothing.
    if (excess <= 0 || part.length < least + 2) continue;
    const kept = Math.max(least, part.length - excess);
    excess -= part.length - kept;
    parts[i] = cut(part, kept, Math.ceil((kept - 1) / 2));
  }
  return excess <= 0 ? parts.join(".") : null;
}

function cut(text: string, length: number, head: number): string {
  return `${text.slice(0, head)}…${text.slice(text.length - (length - 1 - head))}`;
}
