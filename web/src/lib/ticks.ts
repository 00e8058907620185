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

/** So many times as high, equal distances are as good as equal factors. */
const NARROW = 5;

/** Powers of ten between two positive numbers, at most `count` of them; where there are too few, numbers that
 * are about equal factors apart, and in a narrow range round ones. */
export function logTicks(low: number, high: number, count: number): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) {
    return high / low > NARROW ? factorTicks(low, high, count) : niceTicks(low, high, count);
  }
  const stride = Math.max(1, Math.ceil((last - first + 1) / count));
  const ticks: number[] = [];
  for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride) {
    ticks.push(Number(`1e${power}`));
  }
  return ticks;
}

/** 1, 2 and 5 times powers of ten, or 1 and 3 times where those would be more than `count`. */
function factorTicks(low: number, high: number, count: number): number[] {
  const lowest = Math.floor(Math.log10(low));
  const from = (digits: number[]) =>
    [lowest, lowest + 1, lowest + 2]
      .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)))
      .filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  const fine = from([1, 2, 5]);
  return fine.length <= count ? fine : from([1, 3]);
}

function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  const ratio = rough / power;
  if (ratio <= 1) return power;
  if (ratio <= 2) return 2 * power;
  if (ratio <= 5) return 5 * power;
  return 10 * power;
}
