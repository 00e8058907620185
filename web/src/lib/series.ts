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

/** A series with what came after a step thinned like what is before it, where that was thinned to so many
 * stretches: of each that is over its ends, its extremes, and the ends of what is not finite. */
export function thinLater(series: Series, after: number, stretches: number): Series {
  const start = lastAtMost(series.step, after) + 1;
  const length = (series.step[start - 1]! - series.step[0]!) / stretches;
  // Of each stretch two points or more are told, and all where there are four.
  if (start < 2 * stretches || !(length > 4)) return series;
  const stretchOf = (place: number) => Math.floor((series.step[place]! - after) / length);
  const kept: number[] = [];
  for (let from = start, end = start; from < series.step.length; from = end) {
    while (end < series.step.length && stretchOf(end) === stretchOf(from)) end++;
    if (end < series.step.length) kept.push(...told(series.value, from, end));
    else for (let place = from; place < end; place++) kept.push(place);
  }
  if (start + kept.length === series.step.length) return series;
  const thin = <T>(values: readonly T[]) =>
    values.slice(0, start).concat(kept.map((place) => values[place]!));
  const { step, value, kind, at } = series;
  return { step: thin(step), value: thin(value), kind: thin(kind), at: thin(at) };
}

/** The places of a stretch's ends and extremes, and of the ends of what is not finite. */
function told(value: readonly number[], from: number, end: number): number[] {
  let least = -1;
  let greatest = -1;
  const places = new Set([from, end - 1]);
  for (let place = from; place < end; place++) {
    const own = value[place]!;
    if (!Number.isFinite(own)) {
      const isInside = Object.is(value[place - 1], own) && Object.is(value[place + 1], own);
      if (!isInside) places.add(place);
      continue;
    }
    if (least < 0 || own < value[least]!) least = place;
    if (greatest < 0 || own > value[greatest]!) greatest = place;
  }
  if (least >= 0) places.add(least).add(greatest);
  return [...places].sort((a, b) => a - b);
}

/** The series of most points. */
export function longest(series: ReadonlyMap<string, Series>): Series {
  let found = NOTHING;
  for (const each of series.values()) if (each.step.length > found.step.length) found = each;
  return found;
}
