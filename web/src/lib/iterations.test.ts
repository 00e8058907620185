import { expect, it } from "vitest";
import { lastIterations } from "./iterations";

it("keeps the last iteration of each step", () => {
  const row = (step: number, iteration: number) => ({
    step,
    iteration,
    rms: 10 * step + iteration,
  });
  const all = [row(0, 0), row(0, 1), row(0, 2), row(5, 0), row(9, 1), row(9, 0)];
  const { rows, iterations } = lastIterations(all);
  expect(rows.map(({ rms }) => rms)).toEqual([2, 50, 91]);
  expect(iterations).toEqual([3, 1, 2]);
});

it("takes several rows of one iteration for one", () => {
  const { rows, iterations } = lastIterations([
    { step: 3, iteration: 0, of: "a" },
    { step: 3, iteration: 0, of: "b" },
  ]);
  expect(rows.map(({ of }) => of)).toEqual(["b"]);
  expect(iterations).toEqual([1]);
});
