import { expect, test } from "vitest";
import { brushed, cellName, gridOf, indicesOf, moveIn, sliceOf } from "./cells";

test("cells lie as the last two dimensions do", () => {
  expect(gridOf([8, 28, 28])).toEqual({ rows: 28, columns: 28, slices: 8, perSlice: 784 });
  expect(gridOf([10])).toEqual({ rows: 1, columns: 10, slices: 1, perSlice: 10 });
  expect(gridOf([100])).toEqual({ rows: 10, columns: 10, slices: 1, perSlice: 100 });
  expect(gridOf([])).toEqual({ rows: 1, columns: 1, slices: 1, perSlice: 1 });
});

test("a brush stays inside of its slice", () => {
  const grid = gridOf([2, 4, 4]);
  expect(brushed(grid, 1, 0, 0, 1)).toEqual([16]);
  expect(brushed(grid, 0, 0, 0, 3)).toEqual([0, 1, 4, 5]);
});

test("a cell is named by its position", () => {
  expect(cellName([2, 4, 4], 21)).toBe("1, 1, 1");
});

test("a slice is chosen by channel and depth", () => {
  expect(indicesOf([3, 5], 13)).toEqual([2, 3]);
  expect(sliceOf([3, 5], [2, 3])).toBe(13);
});

test("an arrow leads to the next cell of the same slice", () => {
  expect(moveIn([2, 3, 4], 12 + 5, 0, 1)).toBe(12 + 6);
  expect(moveIn([2, 3, 4], 12 + 5, 1, 0)).toBe(12 + 9);
  expect(moveIn([2, 3, 4], 12 + 7, 0, 1)).toBeNull();
  expect(moveIn([2, 3, 4], 12 + 1, -1, 0)).toBeNull();
  expect(moveIn([18], 17, 0, 1)).toBeNull();
});
