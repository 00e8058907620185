import { lastAtMost } from "./search";
import { integerTicks } from "./ticks";

type Columns = readonly (readonly [first: number, last: number])[];

/** The column that holds a step, or the one before it; the newest for null; -1 if there is none. */
export function columnOfStep(columns: Columns, step: number | null): number {
  if (step === null) return columns.length - 1;
  return Math.max(
    columns.length > 0 ? 0 : -1,
    lastAtMost(
      columns.map(([first]) => first),
      step,
    ),
  );
}

/** Round steps, about `count` of them, each with the column where it is, or the part of the way from one to the next;
 * columns need not be even. */
export function columnTicks(columns: Columns, count: number): { column: number; step: number }[] {
  const first = columns[0]?.[0];
  const last = columns.at(-1)?.[1];
  if (first === undefined || last === undefined) return [];
  const ticks: { column: number; step: number }[] = [];
  const apart = columns.length / (count * 1.6);
  for (const step of integerTicks(first, last, count)) {
    const column = placeOf(columns, step);
    // Where steps were recorded rarely, round steps crowd into few columns.
    if (ticks.length === 0 || column - ticks.at(-1)!.column >= apart) ticks.push({ column, step });
  }
  return ticks;
}

function placeOf(columns: Columns, step: number): number {
  const column = columnOfStep(columns, step);
  const [, before] = columns[column]!;
  const after = columns[column + 1]?.[0];
  return after === undefined || step <= before
    ? column
    : column + (step - before) / (after - before);
}
