import type { SampleRow } from "../connectors/kept";
import { ofIteration, sampleKey } from "./kept";

export interface SampleLine {
  name: string;
  x: number[];
  y: number[];
  isDots: boolean;
  /** The selected sample, and those that are not told apart. */
  isChosen: boolean;
  isRest: boolean;
}

const MOST_LINES = 12;

/** Whether the same samples were kept step after step, so that each makes a line. */
export function areFollowed(rows: readonly SampleRow[]): boolean {
  const keys = new Set(rows.map(sampleKey));
  const steps = new Set(rows.map(({ step }) => step));
  const seen = new Set(rows.map((row) => `${row.step}/${sampleKey(row)}`)).size;
  // On average, each sample is there in at least half of the steps.
  return keys.size <= MOST_LINES && seen >= 0.5 * keys.size * steps.size;
}

/** The lines of one statistic: one for each sample, or dots where samples are others in each step. */
export function sampleLines(
  rows: readonly SampleRow[],
  statistic: "mean" | "abs_mean" | "std" | "abs_max",
  iteration: number | null,
  chosen: string | null,
): SampleLine[] {
  const isFollowed = areFollowed(rows);
  const lines = new Map<string, SampleLine>();
  for (const group of bySteps(rows)) {
    for (const row of ofIteration(group, iteration)) {
      const key = sampleKey(row);
      const isChosen = key === chosen;
      const name = isFollowed || isChosen ? `sample ${key}` : chosen ? "others" : "samples";
      const line = lines.get(name) ?? {
        name,
        x: [],
        y: [],
        isDots: !isFollowed,
        isChosen,
        isRest: !isFollowed && !isChosen,
      };
      line.x.push(row.step);
      line.y.push(row[statistic] ?? Number.NaN);
      lines.set(name, line);
    }
  }
  const ordered = [...lines.values()];
  return isFollowed ? ordered.map(joinSteps) : ordered.map(spread);
}

function bySteps(rows: readonly SampleRow[]): SampleRow[][] {
  const groups: SampleRow[][] = [];
  for (const row of rows) {
    if (groups.at(-1)?.[0]?.step === row.step) groups.at(-1)!.push(row);
    else groups.push([row]);
  }
  return groups;
}

/** One value a step: of several backward passes the last. */
function joinSteps(line: SampleLine): SampleLine {
  const last = new Map(line.x.map((x, i) => [x, line.y[i]!]));
  return { ...line, x: [...last.keys()], y: [...last.values()] };
}

/** Several dots at one step: each a hair beside the other, since an axis has each place once. */
function spread(line: SampleLine): SampleLine {
  const x = line.x.slice();
  for (let i = 1; i < x.length; i++) {
    if (x[i]! <= x[i - 1]!) x[i] = x[i - 1]! + 1e-6;
  }
  return { ...line, x };
}
