import { expect, it } from "vitest";
import { lastAtMost, nearest } from "./search";

it("searches ascending lists", () => {
  const steps = [0, 10, 20];
  expect([-1, 0, 9, 25].map((step) => lastAtMost(steps, step))).toEqual([-1, 0, 0, 2]);
  expect([-1, 4, 6, 25].map((step) => nearest(steps, step))).toEqual([0, 0, 1, 2]);
  expect(nearest([], 3)).toBe(-1);
});
