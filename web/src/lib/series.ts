import { lastAtMost } from "./search";

/** Points of a line, in the order of their steps. */
export interface Series {
  step: number[];
  value: number[];
  /** The kind of each step, and when the value was logged, in seconds since 1970. */
  kind: string[];
  at: number[];
}

/** In the order of names, and each name's in the order of steps. */
export interface ScalarRows {
  step: ArrayLike<number>;
  name: ArrayLike<string>;
  value: ArrayLike<number>;
  kind: ArrayLike<string>;
  logged_at: ArrayLike<number>;
}

const NOTHING: Series = { step: [], value: [], kind: [], at: [] };

/** Series by name, where all that is later than a step is replaced by the rows. Returns new series for
 * what changed. */
export function appendScalars(
  series: ReadonlyMap<string, Series>,
  rows: ScalarRows,
  after: number,
): Map<string, Series> {
  const grown = new Map(series);
  for (let start = 0, end = 0; start < rows.step.length; start = end) {
    const name = rows.name[start]!;
    while (end < rows.step.length && rows.name[end] === name) end++;
    grown.set(name, continued(series.get(name) ?? NOTHING, rows, start, end, after));
  }
  return grown;
}

function continued(
  old: Series,
  rows: ScalarRows,
  start: number,
  end: number,
  after: number,
): Series {
  const kept = lastAtMost(old.step, after) + 1;
  // Not one after another: an array that is pushed to keeps room for half as much again.
  const grown = <T>(values: T[], later: ArrayLike<T>) =>
    values.slice(0, kept).concat(Array.from({ length: end - start }, (_, i) => later[start + i]!));
  return {
    step: grown(old.step, rows.step),
    value: grown(old.value, rows.value),
    kind: oneOfEqual(grown(old.kind, rows.kind)),
    at: grown(old.at, rows.logged_at),
  };
}

/** Of texts that are equal to the one before them that one, so that each is held once. */
function oneOfEqual(texts: string[]): string[] {
  for (let i = 1; i < texts.length; i++) if (texts[i] === texts[i - 1]) texts[i] = texts[i - 1]!;
  return texts;
}

/** The series of most points. */
export function longest(series: ReadonlyMap<string, Series>): Series {
  let found = NOTHING;
  for (const each of series.values()) if (each.step.length > found.step.length) found = each;
  return found;
}
