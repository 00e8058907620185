/** What a line can show: null where it cannot, as with NaN, infinity and, on a log axis, 0 and less. */
export function plottable(value: ArrayLike<number>, isLog: boolean): (number | null)[] {
  return Array.from(value, (v) => (Number.isFinite(v) && (!isLog || v > 0) ? v : null));
}

/** The steps from which and up to which values were not finite, one range after another. */
export function brokenRanges(
  step: ArrayLike<number>,
  value: ArrayLike<number>,
): [first: number, last: number][] {
  const ranges: [number, number][] = [];
  let isBroken = false;
  for (let i = 0; i < step.length; i++) {
    const wasBroken = isBroken;
    isBroken = !Number.isFinite(value[i]!);
    if (isBroken && wasBroken) ranges.at(-1)![1] = step[i]!;
    else if (isBroken) ranges.push([step[i]!, step[i]!]);
  }
  return ranges;
}

/** Numbers that are nearer to each other, in parts of their size, differ because they were rounded. */
const ROUNDING = 1e-12;

/** Whether two numbers are the same but for how they were rounded. */
export function isSameRounded(low: number, high: number): boolean {
  return high - low <= ROUNDING * Math.max(Math.abs(low), Math.abs(high));
}

/** The range of an axis around the data, with some room. */
export function paddedRange(low: number, high: number, isLog: boolean): [number, number] {
  if (isLog) return [low / 1.15, high * 1.15];
  const room = isSameRounded(low, high) ? Math.abs(high) * 0.1 || 1 : (high - low) * 0.06;
  return [low - room, high + room];
}
