/** Points of a line, in the order of their steps. */
export interface Series {
  step: number[];
  value: number[];
}

interface ScalarRows {
  step: ArrayLike<number>;
  name: ArrayLike<string>;
  value: ArrayLike<number>;
}

/** Adds rows to series by name. Rows that a series already reaches are left out, so that asking
 * again from the last known step on is harmless. Returns new series for what changed. */
export function appendScalars(
  series: ReadonlyMap<string, Series>,
  rows: ScalarRows,
): Map<string, Series> {
  const grown = new Map(series);
  const copied = new Set<string>();
  for (let i = 0; i < rows.step.length; i++) {
    const name = rows.name[i]!;
    if (!copied.has(name)) {
      copied.add(name);
      const old = grown.get(name);
      grown.set(name, { step: old?.step.slice() ?? [], value: old?.value.slice() ?? [] });
    }
    const { step, value } = grown.get(name)!;
    const known = series.get(name)?.step.at(-1) ?? Number.NEGATIVE_INFINITY;
    if (rows.step[i]! <= known) continue;
    step.push(rows.step[i]!);
    value.push(rows.value[i]!);
  }
  return grown;
}

export function longest(series: ReadonlyMap<string, Series>): number {
  let length = 0;
  for (const { step } of series.values()) length = Math.max(length, step.length);
  return length;
}
