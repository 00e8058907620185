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

it("names no step beside a column that it is not in", () => {
  const everySecond = Array.from({ length: 11 }, (_, i): [number, number] => [2 * i, 2 * i]);
  const ticks = columnTicks(everySecond, 4);
  expect(ticks.length).toBeGreaterThan(2);
  for (const { column, step } of ticks) expect(step).toBe(2 * column);
});
