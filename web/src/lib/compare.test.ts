import { expect, test } from "vitest";
import {
  configRows,
  differenceMatrix,
  formatWith,
  readTab,
  readTolerance,
  readWith,
} from "./compare";
import { heatmapMatrix } from "./heatmap";

test("runs of any name survive the address", () => {
  const ids = ["a/b", "a/b,c", "x/50%2C"];
  expect(readWith({ with: formatWith(ids) }, "me/too")).toEqual(ids);
  expect(readWith({ with: "a/b,a/b,me/too" }, "me/too")).toEqual(["a/b"]);
  expect(readWith({}, "a/b")).toEqual([]);
});

test("what the address says wrongly is as at first", () => {
  expect([readTab({ compare: "toString" }), readTolerance({ tolerance: "-1" })]).toEqual([
    "scalars",
    1e-3,
  ]);
  expect([readTab({ compare: "tensor" }), readTolerance({ tolerance: "0.1" })]).toEqual([
    "tensor",
    0.1,
  ]);
});

test("differences of cells", () => {
  const made = (value: number[]) =>
    heatmapMatrix(
      { site: [0, 0, 0, 0], column: [0, 1, 2, 3], value, nans: [0, 0, 0, 0], infs: [0, 0, 0, 0] },
      [
        [0, 0],
        [1, 1],
        [2, 2],
        [3, 3],
      ],
      0,
    );
  const [one, other] = [made([1, 0, 2, 1]), made([4, 0, 1, -1])];
  expect([...differenceMatrix(one, other, "ratio").values]).toEqual([2, 0, -1, Number.NaN]);
  expect([...differenceMatrix(one, other, "relative").values]).toEqual([0.75, 0, -0.5, -2]);
});

test("configurations: only what is not the same", () => {
  const rows = configRows([
    { lr: 0.1, optimizer: { name: "Adam" } },
    { lr: 0.1, optimizer: { name: "SGD" }, seed: 3 },
  ]);
  expect(rows).toEqual([
    { name: "optimizer.name", values: ["Adam", "SGD"] },
    { name: "seed", values: [null, "3"] },
  ]);
});
