export interface IterationRow {
  step: number;
  iteration: number;
}

interface Unchosen {
  /** What stands in the selection. */
  short: string;
  about: string;
}

const LAST: Unchosen = { short: "last it", about: "of each step the last iteration is shown" };
const OTHERS: Record<string, Unchosen> = {
  heatmap: {
    short: "greatest it",
    about:
      "each cell is the greatest of all iterations; the inspector and other views show the last",
  },
  calls: { short: "all its", about: "the calls of all iterations are shown" },
};

/** What a view shows while no iteration is chosen. */
export function unchosenIteration(view: string): Unchosen {
  return OTHERS[view] ?? LAST;
}

/** What a cell of a heatmap is of, where steps have several iterations. */
export function ofIterations(iteration: number | null, iterations: number): string {
  if (iteration !== null) return `iteration ${iteration}`;
  return iterations > 1 ? "the greatest of all iterations" : "";
}

const INSTEAD: Record<string, string> = {
  heatmap: "the greatest of all",
  numerics: "the last",
  flow: "the last",
  overview: "the greatest of all",
};

/** What is said where a file has no pictures of single iterations; null of views that need none. */
export function instead(view: string): string | null {
  const shown = INSTEAD[view];
  return shown ? `This file has no single iterations here, so it shows ${shown}.` : null;
}

const ALL_KINDS: readonly string[] = ["overview", "heatmap", "tensor", "pins", "numerics", "flow"];

/** What is said where a file has no pictures of the steps of one kind; null of views that need none. */
export function insteadOfKind(view: string): string | null {
  return ALL_KINDS.includes(view)
    ? "This file has no pictures of one kind of steps here: those over time are of all kinds."
    : null;
}

/** Which of a step's iterations numbers are of, in words. */
export function iterationLabel(iteration: number | null, iterations: number): string {
  return iteration === null
    ? `last of ${iterations} iterations`
    : `iteration ${iteration} of ${iterations}`;
}

/** One row for each step: that of the iteration, or of the last for null; and how many iterations each
 * step had. Rows are in the order of their steps. What was seen once, before or after all iterations,
 * belongs to each of them. */
export function iterationRows<T extends IterationRow>(all: readonly T[], iteration: number | null) {
  const rows: T[] = [];
  const iterations: number[] = [];
  for (let start = 0; start < all.length; ) {
    let end = start + 1;
    while (end < all.length && all[end]!.step === all[start]!.step) end++;
    const chosen = choose(all, start, end, iteration);
    if (chosen) {
      rows.push(chosen);
      iterations.push(countIterations(all, start, end));
    }
    start = end;
  }
  return { rows, iterations };
}

function choose<T extends IterationRow>(
  all: readonly T[],
  start: number,
  end: number,
  iteration: number | null,
): T | null {
  if (end - start === 1 && (iteration === null || all[start]!.iteration <= 0)) return all[start]!;
  let chosen: T | null = null;
  for (let i = start; i < end; i++) {
    const row = all[i]!;
    const isAsked = iteration === null || row.iteration === iteration;
    if (isAsked && (!chosen || row.iteration >= chosen.iteration)) chosen = row;
  }
  return chosen;
}

function countIterations(all: readonly IterationRow[], start: number, end: number): number {
  let last = 0;
  for (let i = start; i < end; i++) last = Math.max(last, all[i]!.iteration);
  return end - start === 1 ? 1 : last + 1;
}
