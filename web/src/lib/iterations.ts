export interface IterationRow {
  step: number;
  iteration: number;
}

/** The last iteration of each step, and how many each had; rows are in the order of their steps. */
export function lastIterations<T extends IterationRow>(all: readonly T[]) {
  const rows: T[] = [];
  const iterations: number[] = [];
  for (const row of all) {
    const before = rows.at(-1);
    if (before?.step !== row.step) {
      rows.push(row);
      iterations.push(1);
    } else {
      const last = row.iteration >= before.iteration ? row : before;
      if (row.iteration !== before.iteration) iterations[rows.length - 1] = last.iteration + 1;
      rows[rows.length - 1] = last;
    }
  }
  return { rows, iterations };
}
