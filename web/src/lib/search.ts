/** The last index whose element is at most `value` in an ascending list, or -1. */
export function lastAtMost(sorted: ArrayLike<number>, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The index of the element nearest to `value` in an ascending list, or -1 if it is empty. */
export function nearest(sorted: ArrayLike<number>, value: number): number {
  const before = lastAtMost(sorted, value);
  if (before < 0) return sorted.length > 0 ? 0 : -1;
  if (before === sorted.length - 1) return before;
  return value - sorted[before]! <= sorted[before + 1]! - value ? before : before + 1;
}
