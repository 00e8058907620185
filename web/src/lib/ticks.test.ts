import { describe, expect, it } from "vitest";
import { axisTicks, integerTicks, logTicks, niceTicks } from "./ticks";

describe("ticks", () => {
  it("are round", () => {
    expect(niceTicks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(niceTicks(-3, 7, 2)).toEqual([0, 5]);
    expect(axisTicks(0.9, 4.1, 1).length).toBeGreaterThan(1);
    expect(integerTicks(0, 3, 10)).toEqual([0, 1, 2, 3]);
    expect(logTicks(1e-4, 1, 10)).toEqual([1e-4, 1e-3, 0.01, 0.1, 1]);
    expect(logTicks(1e-9, 1, 4)).toEqual([1e-9, 1e-6, 1e-3, 1]);
    expect(logTicks(2, 8, 3)).toEqual([2, 4, 6, 8]);
  });

  it("are spread over a log axis that has one power of ten or none", () => {
    expect(logTicks(0.18, 4.5, 4)).toEqual([0.2, 0.5, 1, 2]);
    expect(logTicks(0.18, 4.5, 3)).toEqual([0.3, 1, 3]);
    expect(logTicks(0.11, 0.99, 4)).toEqual([0.2, 0.5]);
    expect(logTicks(1.5, 9, 2)).toEqual([2, 5]);
  });

  it("exist for a range without width", () => expect(niceTicks(2, 2, 3)).toEqual([2]));
});
