/** The path of a small line; gaps where there is no finite value, and where those gaps are. */
export interface Spark {
  path: string;
  gaps: number[];
  end: { x: number; y: number } | null;
}

export function sparkPath(
  values: ArrayLike<number | null>,
  width: number,
  height: number,
  pad = 1.5,
): Spark {
  const points = thin(values, Math.max(2, Math.floor(width)));
  const finite = points.filter(({ value }) => Number.isFinite(value)).map(({ value }) => value);
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low;
  const x = (at: number) => pad + at * (width - 2 * pad);
  const y = (value: number) =>
    span > 0 ? height - pad - ((value - low) / span) * (height - 2 * pad) : height / 2;
  let path = "";
  let isOpen = false;
  let end: Spark["end"] = null;
  const gaps: number[] = [];
  for (const { at, value } of points) {
    if (Number.isFinite(value)) {
      path += `${isOpen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      end = { x: x(at), y: y(value) };
    } else {
      gaps.push(x(at));
      end = null;
    }
    isOpen = Number.isFinite(value);
  }
  return { path, gaps, end };
}

/** Keeps the lowest and the highest value of each pixel, in their order, and whatever is not finite. */
function thin(values: ArrayLike<number | null>, width: number): { at: number; value: number }[] {
  const last = Math.max(1, values.length - 1);
  const point = (i: number) => ({ at: i / last, value: values[i] ?? Number.NaN });
  if (values.length <= 2 * width) return Array.from({ length: values.length }, (_, i) => point(i));
  const kept: { at: number; value: number }[] = [];
  const perPixel = values.length / width;
  for (let pixel = 0; pixel < width; pixel++) {
    const end = Math.floor((pixel + 1) * perPixel);
    kept.push(...extremes(values, Math.floor(pixel * perPixel), end).map(point));
  }
  return kept;
}

/** Where the lowest, the highest and the first value that is not finite are, in their order. */
function extremes(values: ArrayLike<number | null>, start: number, end: number): number[] {
  let [low, high, broken] = [-1, -1, -1];
  for (let i = start; i < end; i++) {
    const value = values[i] ?? Number.NaN;
    if (!Number.isFinite(value)) broken = broken < 0 ? i : broken;
    else {
      if (low < 0 || value < values[low]!) low = i;
      if (high < 0 || value >= values[high]!) high = i;
    }
  }
  return [...new Set([low, high, broken])].filter((i) => i >= 0).sort((a, b) => a - b);
}
