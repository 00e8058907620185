import { expect, it } from "vitest";
import { brokenRanges, plottable } from "./plot";

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;

it("shows where a line is broken", () => {
  expect(brokenRanges([0, 1, 2, 3, 4], [1, NAN, INF, 2, NAN])).toEqual([
    [1, 2],
    [4, 4],
  ]);
  expect(plottable([1, NAN, 0, -1], false)).toEqual([1, null, 0, -1]);
  expect(plottable([1, NAN, 0, -1], true)).toEqual([1, null, null, null]);
});
