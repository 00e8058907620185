/** A test for names: a regular expression if the text is one, else a substring; no matter of case. */
export function nameFilter(text: string): (name: string) => boolean {
  if (!text) return () => true;
  const lower = text.toLowerCase();
  try {
    const expression = new RegExp(text, "i");
    return (name) => expression.test(name) || name.toLowerCase().includes(lower);
  } catch {
    return (name) => name.toLowerCase().includes(lower);
  }
}

/** Names that hold every word of the query, best first: earlier and shorter matches are better. */
export function searchNames<T>(
  items: readonly T[],
  query: string,
  nameOf: (item: T) => string,
): T[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [...items];
  const scored: { item: T; score: number }[] = [];
  for (const item of items) {
    const name = nameOf(item).toLowerCase();
    const places = words.map((word) => name.indexOf(word));
    if (places.some((place) => place < 0)) continue;
    scored.push({ item, score: places.reduce((a, b) => a + b, 0) + name.length / 100 });
  }
  return scored.sort((a, b) => a.score - b.score).map(({ item }) => item);
}
