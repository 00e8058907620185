import { expect, it } from "vitest";
import { appendScalars } from "./series";

const { NaN: NAN } = Number;

it("adds scalars, and only those that are new", () => {
  const rows = (step: number[], value: number[]) => ({ step, value, name: step.map(() => "loss") });
  const first = appendScalars(new Map(), rows([0, 1], [4, 3]));
  const second = appendScalars(first, rows([1, 2], [3, NAN]));
  expect(second.get("loss")).toEqual({ step: [0, 1, 2], value: [4, 3, NAN] });
  expect(first.get("loss")?.step).toEqual([0, 1]);
});
