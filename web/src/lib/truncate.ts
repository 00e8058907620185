/** Cuts the middle out of a text that is longer than `length`: both ends of a name tell it apart.
 * The end gets the larger half, as the last parts of a qualified name say most. */
export function truncateMiddle(text: string, length: number): string {
  if (text.length <= length) return text;
  if (length <= 1) return "…";
  const head = Math.floor((length - 1) * 0.4);
  const tail = length - 1 - head;
  return `${text.slice(0, head)}…${text.slice(text.length - tail)}`;
}
