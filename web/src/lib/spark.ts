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
  const all = Array.from({ length: values.length }, (_, i) => ({
    at: i / last,
    value: values[i] ?? Number.NaN,
  }));
  if (all.length <= 2 * width) return all;
  const kept: { at: number; value: number }[] = [];
  const perPixel = all.length / width;
  for (let pixel = 0; pixel < width; pixel++) {
    const part = all.slice(Math.floor(pixel * perPixel), Math.floor((pixel + 1) * perPixel));
    const finite = part.filter(({ value }) => Number.isFinite(value));
    const broken = part.find(({ value }) => !Number.isFinite(value));
    const ordered = finite.toSorted((a, b) => a.value - b.value);
    const extremes = [ordered[0], ordered.at(-1), broken].filter((point) => point !== undefined);
    kept.push(...extremes.toSorted((a, b) => a.at - b.at));
  }
  return kept;
}
