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
  expect(columnTicks(columns, 3).map(({ column }) => Math.floor(column))).toEqual([0, 1, 2]);
});

it("puts a round step that is in no column between two", () => {
  const everySecond = Array.from({ length: 11 }, (_, i): [number, number] => [2 * i, 2 * i]);
  const ticks = columnTicks(everySecond, 4);
  expect(ticks.map(({ step }) => step)).toContain(5);
  for (const { column, step } of ticks) expect(column).toBe(step / 2);
});
