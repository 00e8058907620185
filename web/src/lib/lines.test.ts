import { describe, expect, it } from "vitest";
import { rangeOf, smooth } from "./lines";

describe("smoothing", () => {
  it("is the mean of all before, each of less weight than the next", () => {
    const values = [3, 1, 4, 1, 5, 9, 2, 6];
    for (const [i, found] of smooth(values, 0.9).entries()) {
      const weights = values.slice(0, i + 1).map((_, j) => 0.9 ** (i - j));
      const total = weights.reduce((a, b) => a + b, 0);
      const mean = weights.reduce((sum, weight, j) => sum + weight * values[j]!, 0) / total;
      expect(found).toBeCloseTo(mean, 12);
    }
  });

  it("leaves what does not change as it is", () => {
    expect(new Set(smooth(Array(500).fill(1e-3), 0.97))).toEqual(new Set([1e-3]));
    expect([...smooth([Number.NaN, 2, Number.POSITIVE_INFINITY, 2], 0.5)]).toEqual([
      Number.NaN,
      2,
      Number.POSITIVE_INFINITY,
      2,
    ]);
  });
});

describe("the y axis", () => {
  it("is not filled by what rounding makes of a constant", () => {
    const [low, high] = rangeOf([1e-3, 1e-3 + 2e-19, 1e-3 - 4e-19], false, true);
    expect([low, high]).toEqual([expect.closeTo(9e-4), expect.closeTo(1.1e-3)]);
    const spike = rangeOf(
      [
        ...Array(200)
          .fill(0)
          .map((_, i) => 1 + (i % 3) * 1e-16),
        5,
      ],
      false,
      true,
    );
    expect(spike[1]).toBeGreaterThan(5);
  });

  it("is filled by small differences that are more than that", () => {
    const [low, high] = rangeOf([1, 1 + 1e-9], false, false);
    expect(high - low).toBeLessThan(2e-9);
  });
});
