/** Round numbers between `low` and `high`, about `count` of them, 1, 2 or 5 times a power of ten apart. */
export function niceTicks(low: number, high: number, count: number): number[] {
  if (!(high > low) || count < 1) return Number.isFinite(low) ? [low] : [];
  const step = niceStep((high - low) / count);
  const ticks: number[] = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

/** As `niceTicks`, but never fewer than two where the range has two round numbers at all. */
export function axisTicks(low: number, high: number, count: number): number[] {
  for (let wanted = count; wanted < count + 4; wanted++) {
    const ticks = niceTicks(low, high, wanted);
    if (ticks.length > 1) return ticks;
  }
  return niceTicks(low, high, count);
}

/** As `niceTicks`, but whole numbers only: for steps. */
export function integerTicks(low: number, high: number, count: number): number[] {
  if (high - low < count) count = Math.max(1, high - low);
  return niceTicks(low, high, count).filter(Number.isInteger);
}

/** Powers of ten between two positive numbers, at most `count` of them; round numbers if there are too few. */
export function logTicks(low: number, high: number, count: number): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) return niceTicks(low, high, count);
  const stride = Math.max(1, Math.ceil((last - first + 1) / count));
  const ticks: number[] = [];
  for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride) {
    ticks.push(Number(`1e${power}`));
  }
  return ticks;
}

function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  const ratio = rough / power;
  if (ratio <= 1) return power;
  if (ratio <= 2) return 2 * power;
  if (ratio <= 5) return 5 * power;
  return 10 * power;
}
