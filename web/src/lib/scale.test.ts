import { describe, expect, it } from "vitest";
import { colourScale, defaultScale, scalesFor, withBeyond } from "./scale";
import { STATISTICS, statisticOf } from "./statistics";

const values = [1e-6, 1e-4, 1e-2, 1, Number.NaN];

it("has a sensible scale for each statistic", () => {
  expect(defaultScale(statisticOf("rms").kind)).toBe("log");
  expect(defaultScale(statisticOf("mean").kind)).toBe("robust");
  expect(defaultScale(statisticOf("zero_share").kind)).toBe("linear");
  for (const { kind } of STATISTICS) expect(scalesFor(kind)).toContain(defaultScale(kind));
});

describe("a scale", () => {
  it("says that other values than those it was made for lie beyond it", () => {
    const scale = colourScale("magnitude", "log", values);
    const labels = (others: (number | null)[]) =>
      withBeyond(scale, others).ends.map(({ label }) => label);
    expect(labels([1, 1e-5, null, 0])).toEqual(scale.ends.map(({ label }) => label));
    expect(labels([1e-9, 20])).toEqual(scale.ends.map(({ label }, i) => `${"≤≥"[i]} ${label}`));
  });

  it("of magnitudes spreads decades evenly", () => {
    const { place, ramp } = colourScale("magnitude", "log", values);
    expect(ramp).toBe("viridis");
    expect([1e-6, 1e-3, 1].map((v) => place(v, 0))).toEqual([0, expect.closeTo(0.5), 1]);
    expect(place(0, 0)).toBe(0);
  });

  it("of magnitudes is not taken by the masks among them", () => {
    const sites = Array.from({ length: 90 }, (_, i) => 10 ** (i / 30));
    const { high, ends } = colourScale("magnitude", "log", [...sites, ...Array(10).fill(2e38)]);
    expect(high).toBeLessThan(1000);
    expect(ends[1].label).toMatch(/^≥/);
    // What grows without end has no gap.
    const growing = Array.from({ length: 100 }, (_, i) => 10 ** (i / 3));
    expect(colourScale("magnitude", "log", growing).high).toBe(1e33);
  });

  it("of magnitudes says that 0 has the colour of its lower end", () => {
    const lowest = (all: number[]) => colourScale("magnitude", "log", all).ends[0].label;
    expect(lowest(values)).toBe("1e-6");
    expect(lowest([0, ...values])).toBe("≤ 1e-6");
  });

  it("of magnitudes keeps its colours for all but a few that are far higher, and says so", () => {
    const many = Array.from({ length: 2000 }, (_, i) => 1 + i / 2000);
    expect(colourScale("magnitude", "log", [...many, 3]).ends[1].label).toBe("3");
    const { high, ends, place } = colourScale("magnitude", "log", [...many, 1e9]);
    expect(high).toBeLessThan(2.1);
    expect(ends[1].label).toMatch(/^≥ /);
    expect(place(1e9, 0)).toBeGreaterThan(1);
  });

  it("that is robust keeps its colours from rows that are far from all others", () => {
    // Gradients of sixty sites, and that of the loss in two more, which is 1 at all steps.
    const sites = Array.from({ length: 2400 }, (_, i) => 1e-3 * (1 + (i % 60)));
    const { high, ends } = colourScale("magnitude", "robust", [...sites, ...Array(80).fill(1)]);
    expect(high).toBeLessThan(0.25);
    expect(high).toBeGreaterThanOrEqual(0.06);
    expect(ends[1].label).toMatch(/^≥ /);
    const signed = colourScale("signed", "robust", [...sites, ...Array(80).fill(-1)]);
    expect(signed.high).toBeLessThan(0.25);
  });

  it("that is robust leaves no more than a few out where nothing is far", () => {
    const even = Array.from({ length: 1001 }, (_, i) => i);
    expect(colourScale("magnitude", "robust", even)).toMatchObject({ low: 10, high: 990 });
    const halves = [...even.map(() => 0), ...even.map(() => 1)];
    expect(colourScale("magnitude", "robust", halves)).toMatchObject({ low: 0, high: 1 });
  });

  it.each([
    "linear",
    "robust",
    "log",
  ] as const)("of signed values has 0 in the middle: %s", (name) => {
    const { place, ramp } = colourScale("signed", name, [-4, -1, 0, 2]);
    expect(ramp).toBe("diverging");
    expect(place(0, 0)).toBe(0.5);
    expect(place(-4, 0)).toBeLessThanOrEqual(0);
  });

  it("of shares ends at a round share", () => {
    expect(colourScale("share", "linear", [0, 0.13]).high).toBe(0.2);
    expect(colourScale("share", "linear", [0, 0]).high).toBe(1);
  });

  it("relative to a row's middle counts doublings", () => {
    const { place } = colourScale("magnitude", "relative", values);
    expect([0.1, 1.6, 0.1 / 16].map((v) => place(v, 0.1))).toEqual([
      0.5,
      expect.closeTo(1),
      expect.closeTo(0),
    ]);
  });

  it("shows its ends and stands for nothing at all", () => {
    for (const { kind } of STATISTICS) {
      for (const name of scalesFor(kind)) {
        for (const some of [values, [], [0], [Number.NaN]]) {
          const { ends, place } = colourScale(kind, name, some);
          expect(ends.map(({ at }) => at)).toEqual([0, 1]);
          expect(Number.isNaN(place(0.5, 1))).toBe(false);
        }
      }
    }
  });
});
