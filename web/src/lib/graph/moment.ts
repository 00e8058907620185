/** One statistic of every site at one step, as columns: a row for each iteration of a site. */
export interface Moment {
  site: ArrayLike<number>;
  iteration: ArrayLike<number>;
  value: ArrayLike<number | null>;
  nans: ArrayLike<number>;
  infs: ArrayLike<number>;
  shape: (row: number) => readonly number[];
}

/** Of each site's number its row in a moment, or -1; and whether it is of no iteration in particular. */
export interface Picked {
  row: Int32Array;
  /** 1 where a site has a row, of this iteration or of another. */
  isAnywhere: Uint8Array;
  /** 1 where a site was seen once in a step of several iterations, before or after them all. */
  isOutside: Uint8Array;
  /** 1 where a site has a row from before the first iteration. */
  isInitial: Uint8Array;
}

/** The rows of one iteration, or of each site's last for null. */
export function pickRows(moment: Moment, iteration: number | null, iterations: number): Picked {
  let highest = -1;
  const { site } = moment;
  for (let i = 0; i < site.length; i++) highest = Math.max(highest, site[i]!);
  const row = new Int32Array(highest + 1).fill(-1);
  const times = new Int32Array(highest + 1);
  const last = new Int32Array(highest + 1);
  const isInitial = new Uint8Array(highest + 1);
  for (let i = 0; i < site.length; i++) {
    const at = site[i]!;
    const number = moment.iteration[i]!;
    if (times[at] === 0 || number >= moment.iteration[last[at]!]!) last[at] = i;
    if (number === iteration) row[at] = i;
    if (number < 0) isInitial[at] = 1;
    times[at]!++;
  }
  const isAnywhere = Uint8Array.from(times, (count) => Number(count > 0));
  const isOutside = new Uint8Array(highest + 1);
  for (let at = 0; at <= highest; at++) {
    if (times[at] === 0) continue;
    const isOnce = times[at] === 1 && moment.iteration[last[at]!]! <= 0;
    isOutside[at] = Number(isOnce && iterations > 1);
    if (iteration === null || iterations <= 1 || isOnce) row[at] = last[at]!;
  }
  return { row, isAnywhere, isOutside, isInitial };
}

/** Whether there is a number for anything, or a mark. */
export function hasAny({ site, value, nans, infs }: Moment): boolean {
  for (let i = 0; i < site.length; i++) {
    if (Number.isFinite(value[i] ?? Number.NaN) || nans[i]! > 0 || infs[i]! > 0) return true;
  }
  return false;
}

/** The quotient of two moments of the same step, site by site; nothing where either has nothing. */
export function ratio(part: Moment, whole: Moment): Moment {
  const wholeRow = new Map<number, number>();
  for (let i = 0; i < whole.site.length; i++) wholeRow.set(whole.site[i]!, i);
  const value = Array.from({ length: part.site.length }, (_, i) => {
    const below = whole.value[wholeRow.get(part.site[i]!) ?? -1];
    const above = part.value[i];
    return above == null || below == null || below === 0 ? null : above / below;
  });
  return { ...part, value };
}

/** Steps all over a run, its first and its last among them, for what is to be the same at each of them. */
export function spread(steps: readonly number[], most: number): number[] {
  if (steps.length <= most) return [...steps];
  const last = steps.length - 1;
  return Array.from({ length: most }, (_, i) => steps[Math.round((i * last) / (most - 1))]!);
}
