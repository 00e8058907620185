import { densityRamp } from "./colour";
import { rebin, type Sketch, sketchTotal, type ValueAxis } from "./sketch";

export interface Slice extends Sketch {
  first_step: number;
  last_step: number;
}

/** Where each slice starts and ends on the axis of steps: half-way to its neighbours. */
export function sliceBounds(slices: readonly Slice[]): number[] {
  const middles = slices.map(({ first_step, last_step }) => (first_step + last_step) / 2);
  const bounds = middles.slice(1).map((middle, i) => (middle + middles[i]!) / 2);
  const first = slices[0]?.first_step ?? 0;
  const last = slices.at(-1)?.last_step ?? 1;
  return [first, ...bounds, Math.max(last, first + 1)];
}

/** The share of its elements that each slice has in each of `rows` equal parts of the axis. */
export function densities(
  slices: readonly Sketch[],
  axis: ValueAxis,
  rows: number,
): { share: Float64Array[]; highest: number } {
  let highest = 0;
  const share = slices.map((slice) => {
    const bins = rebin(slice, axis, rows);
    const total = sketchTotal(slice) - slice.zeros || 1;
    for (let i = 0; i < rows; i++) {
      bins[i]! /= total;
      highest = Math.max(highest, bins[i]!);
    }
    return bins;
  });
  return { share, highest };
}

/** Paints columns of densities, the lowest values at the bottom. `edges` are in pixels. */
export function paintDistribution(
  pixels: Uint32Array,
  width: number,
  height: number,
  edges: readonly number[],
  { share, highest }: { share: readonly Float64Array[]; highest: number },
  dark: boolean,
): void {
  const table = densityRamp(dark);
  for (const [index, bins] of share.entries()) {
    const left = Math.max(0, Math.round(edges[index]!));
    const right = Math.min(width, Math.max(left + 1, Math.round(edges[index + 1]!)));
    for (let y = 0; y < height; y++) {
      const bin = bins[Math.floor(((height - 1 - y) * bins.length) / height)]!;
      if (bin === 0) continue;
      const place = Math.round(255 * Math.sqrt(bin / highest));
      // Columns are a pixel or two wide: a loop is faster than a call for each.
      for (let at = y * width + left; at < y * width + right; at++) pixels[at] = table[place]!;
    }
  }
}
