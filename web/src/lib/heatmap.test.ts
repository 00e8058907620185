import { describe, expect, it } from "vitest";
import { MARKS, pack, parseHex, ramp } from "./colour";
import { HAS_INF, HAS_NAN, heatmapMatrix, PRESENT, paintHeatmap, rampIndices } from "./heatmap";
import { colourScale } from "./scale";

const columns = (count: number) =>
  Array.from({ length: count }, (_, i) => [i, i] as [number, number]);
const NAN = pack(parseHex(MARKS.dark.nan));

function paint(
  matrix: ReturnType<typeof heatmapMatrix>,
  width: number,
  height: number,
  rows: number,
) {
  const scale = colourScale("magnitude", "log", matrix.values);
  const pixels = new Uint32Array(width * height);
  const viewport = { width, height, firstRow: 0, rowHeight: height / rows };
  const order = Int32Array.from({ length: rows }, (_, i) => i);
  paintHeatmap(pixels, viewport, matrix, rampIndices(matrix, scale), order, scale, true);
  return pixels;
}

describe("heatmapMatrix", () => {
  const matrix = heatmapMatrix(
    {
      site: [7, 7, 2, 2],
      column: [0, 1, 0, 2],
      value: [1, Number.POSITIVE_INFINITY, null, 4],
      nans: [0, 0, 3, 0],
      infs: [0, 0, 0, 1],
    },
    columns(3),
    0,
  );

  it("has a row for each site that was seen", () => {
    expect([7, 2, 0].map((site) => matrix.rowOfSite[site])).toEqual([0, 1, -1]);
  });

  it("tells apart NaN, infinite and missing", () => {
    expect([...matrix.flags]).toEqual([
      PRESENT,
      PRESENT | HAS_INF,
      0,
      PRESENT | HAS_NAN,
      0,
      PRESENT | HAS_INF,
    ]);
    expect([...matrix.values]).toEqual([1, Number.NaN, Number.NaN, Number.NaN, Number.NaN, 4]);
  });
});

describe("paintHeatmap", () => {
  const table = (rows: number, width: number, nanCell = -1) => {
    const cells = rows * width;
    const at = (f: (cell: number) => number) =>
      Float64Array.from({ length: cells }, (_, i) => f(i));
    return heatmapMatrix(
      {
        site: at((i) => Math.floor(i / width)),
        column: at((i) => i % width),
        value: at((i) => 1 + (i % 97)),
        nans: at((i) => Number(i === nanCell)),
        infs: at(() => 0),
      },
      columns(width),
      rows,
    );
  };

  it("gives each cell its colour", () => {
    const pixels = paint(table(1, 97), 97, 1, 1);
    expect(pixels[0]).toBe(ramp("viridis", true)[0]);
    expect(pixels[96]).toBe(ramp("viridis", true)[255]);
  });

  it("keeps the highest where many cells share a pixel", () => {
    const pixels = paint(table(970, 10), 1, 1, 970);
    expect(pixels[0]).toBe(ramp("viridis", true)[255]);
  });

  it("shows a single NaN among a million cells", () => {
    const pixels = paint(table(1000, 1000, 500_500), 300, 200, 1000);
    expect(pixels.filter((pixel) => pixel === NAN).length).toBeGreaterThan(2);
    expect(paint(table(1000, 1000), 300, 200, 1000)).not.toContain(NAN);
  });
});
