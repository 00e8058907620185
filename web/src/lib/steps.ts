import { lastAtMost, nearest } from "./search";

/** Recorded steps of a run, of one kind or of all: every one around a step and at the end, and some of
 * the others, so that a run may have any number of them. */
export interface StepRows {
  step: number[];
  /** How many recorded steps were before each: where two follow each other, none is left out between. */
  place: number[];
  iterations: number[];
  kind: string[];
  /** The signature of each step's graph, or nothing. */
  graph: string[];
}

export const NO_ROWS: StepRows = { step: [], place: [], iterations: [], kind: [], graph: [] };

/** The row of the recorded step nearest to one, or -1 where it may be one that is not held. */
export function rowNear({ step, place }: StepRows, wanted: number): number {
  const row = nearest(step, wanted);
  if (row < 0 || step[row] === wanted) return row;
  const other = wanted > step[row]! ? row + 1 : row - 1;
  // Beyond the first and the last there is nothing: those are always held.
  const isBetween = place[other] !== undefined && Math.abs(place[other] - place[row]!) > 1;
  return isBetween ? -1 : row;
}

/** The row so many recorded steps after another, at most the first or last; -1 if it is not held. */
export function rowBeside({ place }: StepRows, row: number, offset: number): number {
  const wanted = Math.max(0, Math.min(place.at(-1) ?? 0, place[row]! + offset));
  const found = lastAtMost(place, wanted);
  return place[found] === wanted ? found : -1;
}

/** Rows with later ones behind them. Texts that are there already are not held twice. */
export function appendSteps(rows: StepRows, later: StepRows): StepRows {
  if (later.step.length === 0) return rows;
  const texts = new Map([...rows.kind, ...rows.graph].map((text) => [text, text]));
  const known = (text: string) => texts.get(text) ?? text;
  return {
    step: rows.step.concat(later.step),
    place: rows.place.concat(later.place),
    iterations: rows.iterations.concat(later.iterations),
    kind: rows.kind.concat(later.kind.map(known)),
    graph: rows.graph.concat(later.graph.map(known)),
  };
}
