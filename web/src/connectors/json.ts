const WORDS: Record<string, number> = {
  NaN: Number.NaN,
  Infinity: Number.POSITIVE_INFINITY,
  "-Infinity": Number.NEGATIVE_INFINITY,
};

/** A number of the interface's JSON, where NaN and infinity are words. */
export function readNumber(value: unknown): number | null {
  if (typeof value === "number") return value;
  return typeof value === "string" ? (WORDS[value] ?? null) : null;
}
