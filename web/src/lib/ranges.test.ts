import { expect, it } from "vitest";
import { fullRange, median, quantileRange } from "./ranges";

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;

it("finds ranges of what is finite", () => {
  expect(fullRange([3, NAN, -1, INF])).toEqual({ low: -1, high: 3 });
  expect(fullRange([NAN])).toBeNull();
  expect(quantileRange([1, 2, 3, 4, 1000], 0, 0.75)).toEqual({ low: 1, high: 4 });
  expect(median([5, NAN, 1, 3])).toBe(3);
});
