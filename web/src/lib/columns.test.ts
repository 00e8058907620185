import { expect, it } from "vitest";
import { columnOfStep, columnTicks, stepsPerColumn } from "./columns";

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

it("counts the recorded steps of a column, whatever was recorded since", () => {
  const single: [number, number][] = [0, 5, 10].map((step) => [step, step]);
  expect(stepsPerColumn(single, [0, 5, 10, 15])).toBe(1);
  const merged: [number, number][] = [
    [0, 5],
    [10, 20],
  ];
  expect(stepsPerColumn(merged, [0, 5, 10, 15, 20, 25, 30, 35])).toBe(3);
  expect(stepsPerColumn([], [0, 5])).toBe(1);
});
