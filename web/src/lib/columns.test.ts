import { expect, it } from "vitest";
import { columnOfStep, columnTicks } from "./columns";

it("places steps in columns", () => {
  const columns: [number, number][] = [
    [0, 9],
    [10, 19],
    [40, 49],
  ];
  expect([0, 15, 30, 99, null].map((step) => columnOfStep(columns, step))).toEqual([0, 1, 1, 2, 2]);
  expect(columnOfStep([], 3)).toBe(-1);
  expect(columnTicks(columns, 3).map(({ column }) => column)).toEqual([0, 1, 2]);
});
