import { describe, expect, it } from "vitest";
import { withSharedBins } from "./sharedBins";
import { orderedBins, rebin, sketchEdges, sketchQuantiles, sketchTotal, valueAxis } from "./sketch";

/** As `sketch_key` of schema.py. */
function sketchKey(value: number): number {
  const exponent = Math.floor(Math.log2(Math.abs(value)));
  const quarter = Math.floor((Math.abs(value) / 2 ** exponent - 1) * 4);
  return Math.sign(value) * ((exponent + 1074) * 4 + quarter + 1);
}

function sketchOf(values: number[]) {
  const counts = new Map<number, number>();
  for (const value of values.filter((v) => v !== 0)) {
    counts.set(sketchKey(value), (counts.get(sketchKey(value)) ?? 0) + 1);
  }
  const keys = [...counts.keys()].sort((a, b) => a - b);
  const zeros = values.filter((v) => v === 0).length;
  return { keys, counts: keys.map((key) => counts.get(key)!), zeros };
}

function normal(count: number): number[] {
  let seed = 1;
  const next = () => {
    seed = (seed * 48271) % 2147483647;
    return seed / 2147483647;
  };
  return Array.from(
    { length: count },
    () => Math.sqrt(-2 * Math.log(next())) * Math.cos(2 * Math.PI * next()),
  );
}

const sum = (values: ArrayLike<number>) => Array.from(values).reduce((a, b) => a + b, 0);

it("has the same bins as schema.py", () => {
  expect([1, 1.25, -1, 2].map(sketchKey)).toEqual([4297, 4298, -4297, 4301]);
  expect(sketchEdges(4298)).toEqual([1.25, 1.5]);
  expect(sketchEdges(-4298)).toEqual([-1.5, -1.25]);
  expect(sketchEdges(1)[0]).toBe(5e-324);
});

describe("quantiles", () => {
  const values = normal(10_000);
  const sorted = values.toSorted((a, b) => a - b);

  it.each([0.05, 0.25, 0.75, 0.95])("%s is within a bin of the exact one", (share) => {
    const exact = sorted[Math.floor(share * sorted.length)]!;
    expect(sketchQuantiles(sketchOf(values), [share])[0]! / exact).toBeCloseTo(1, 0.9);
  });

  it("count zeros between the signs", () => {
    const sketch = sketchOf([-1, 0, 0, 0, 1]);
    expect(sketchTotal(sketch)).toBe(5);
    expect(sketchQuantiles(sketch, [0.5])).toEqual([0]);
  });

  it("do not exist for nothing", () => {
    expect(sketchQuantiles(sketchOf([]), [0.5])).toEqual([Number.NaN]);
  });
});

describe.each(["log", "linear"] as const)("a %s axis", (name) => {
  const sketch = sketchOf(normal(2000).map((v) => v * 1e-3));
  const axis = valueAxis(name, [sketch]);

  it("grows with the value", () => {
    const places = [-0.1, -1e-3, -1e-4, 0, 1e-5, 1e-3, 0.1].map(axis.place);
    expect(places).toEqual(places.toSorted((a, b) => a - b));
    expect(places[0]).toBe(0);
    expect(places.at(-1)).toBe(1);
  });

  it("has ticks that do not touch", () => {
    const places = axis.ticks.map(({ at }) => at);
    expect(places.length).toBeGreaterThan(2);
    for (const [i, at] of places.slice(1).entries()) expect(at - places[i]!).toBeGreaterThan(0.05);
  });

  it("keeps every element when bins are made anew", () => {
    expect(sum(rebin(sketch, axis, 57))).toBeCloseTo(2000);
  });
});

it("starts at 0 where there is only one sign", () => {
  const axis = valueAxis("log", [sketchOf([1e-6, 1e-3, 1e-2, 2])]);
  expect(axis.place(0)).toBe(0);
  expect(axis.place(2.5)).toBe(1);
});

it("stands for an empty sketch", () => {
  expect(valueAxis("log", []).place(0)).toBe(0.5);
});

describe("sketches with shared bins", () => {
  const values = normal(4000);
  const few = [values.slice(0, 200), values.slice(200, 900), [0, 0], [-3, 0, 1e-9]].map(sketchOf);
  const shares = [0.05, 0.25, 0.5, 0.75, 0.95];

  it("say the same", () => {
    const shared = withSharedBins(few);
    expect(valueAxis("log", shared).ticks).toEqual(valueAxis("log", few).ticks);
    const axis = valueAxis("linear", few);
    for (const [i, sketch] of few.entries()) {
      expect(sketchTotal(shared[i]!)).toBe(sketchTotal(sketch));
      expect(orderedBins(shared[i]!)).toEqual(orderedBins(sketch));
      expect(sketchQuantiles(shared[i]!, shares)).toEqual(sketchQuantiles(sketch, shares));
      expect(rebin(shared[i]!, axis, 40)).toEqual(rebin(sketch, axis, 40));
    }
  });

  it("take as much memory whatever a column is made of", () => {
    const bytes = (sketches: ReturnType<typeof sketchOf>[]) =>
      (withSharedBins(sketches)[0]!.counts as unknown as Float64Array).buffer.byteLength;
    const all = sketchOf(values);
    const short = Array.from({ length: 20 }, (_, i) =>
      i === 0 ? all : sketchOf(values.slice(100 * i, 100 * i + 20)),
    );
    const long = Array.from({ length: 20 }, (_, i) =>
      i === 0 ? all : sketchOf(values.slice(100 * i, 100 * i + 2000)),
    );
    expect(bytes(long)).toBe(bytes(short));
    expect(bytes(short)).toBe(8 * 20 * all.keys.length);
  });

  it("stay lists where nearly all bins would be empty", () => {
    const wide = Array.from({ length: 600 }, (_, i) =>
      sketchOf([2 ** (i - 300), -(2 ** (300 - i))]),
    );
    expect(withSharedBins(wide)).toEqual(wide);
  });

  it("of nothing are nothing", () => {
    expect(withSharedBins([])).toEqual([]);
    expect(withSharedBins([sketchOf([0, 0])]).map(sketchTotal)).toEqual([2]);
  });
});
