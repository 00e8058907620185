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
  const step = old.step.slice(0, kept);
  const value = old.value.slice(0, kept);
  const kind = old.kind.slice(0, kept);
  const at = old.at.slice(0, kept);
  for (let i = start; i < end; i++) {
    step.push(rows.step[i]!);
    value.push(rows.value[i]!);
    // Of equal texts the one that is there already, so that each is held once.
    kind.push(kind.at(-1) === rows.kind[i] ? kind.at(-1)! : rows.kind[i]!);
    at.push(rows.logged_at[i]!);
  }
  return { step, value, kind, at };
}

/** The series of most points. */
export function longest(series: ReadonlyMap<string, Series>): Series {
  let found = NOTHING;
  for (const each of series.values()) if (each.step.length > found.step.length) found = each;
  return found;
}
