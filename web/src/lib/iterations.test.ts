import { describe, expect, it } from "vitest";
import { instead, iterationLabel, iterationRows, unchosenIteration } from "./iterations";

const row = (step: number, iteration: number, mean: number) => ({ step, iteration, mean });
const means = (all: ReturnType<typeof row>[], iteration: number | null) =>
  iterationRows(all, iteration).rows.map(({ mean }) => mean);

describe("iterationRows", () => {
  const all = [row(0, 0, 1), row(1, 0, 2), row(1, 1, 3), row(1, 2, 4), row(2, 0, 5), row(2, 1, 6)];

  it("takes the last iteration of each step, and counts them", () => {
    expect(means(all, null)).toEqual([1, 4, 6]);
    expect(iterationRows(all, null).iterations).toEqual([1, 3, 2]);
  });

  it("takes one iteration where a step has it, and what was seen once", () => {
    expect(means(all, 2)).toEqual([1, 4]);
    expect(means(all, 1)).toEqual([1, 3, 6]);
  });

  it("takes no other iteration than the one that was asked for", () => {
    expect(means([row(0, 4, 1)], 2)).toEqual([]);
    expect(means([row(0, 4, 1)], null)).toEqual([1]);
  });

  it("is the highest, whatever the order within a step", () => {
    expect(means([row(0, 2, 1), row(0, 0, 2), row(0, 1, 3)], null)).toEqual([1]);
  });

  it("has nothing of nothing", () => {
    expect(iterationRows([], null)).toEqual({ rows: [], iterations: [] });
  });
});

describe("what is said of iterations", () => {
  it("is the last where none is chosen, but in views that show another", () => {
    expect(unchosenIteration("tensor").short).toBe("last it");
    expect(unchosenIteration("numerics").short).toBe("last it");
    expect(unchosenIteration("heatmap").short).toBe("greatest it");
    expect(unchosenIteration("calls").short).toBe("all its");
  });

  it("names the iteration beside how many there are", () => {
    expect(iterationLabel(null, 5)).toBe("last of 5 iterations");
    expect(iterationLabel(0, 5)).toBe("iteration 0 of 5");
  });

  it("tells what a file shows instead, in the views that would need more", () => {
    expect(instead("heatmap")).toContain("the greatest of all");
    expect(instead("numerics")).toContain("the last");
    expect(instead("tensor")).toBeNull();
  });
});
