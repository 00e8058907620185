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
  const head = Math.floor((length - 1) * 0.4);
  const tail = length - 1 - head;
  return `${text.slice(0, head)}…${text.slice(text.length - tail)}`;
}
