import { expect, it } from "vitest";
import { appendScalars, longest, type Series, thinLater } from "./series";

const { NaN: NAN } = Number;

function rows(name: string, step: number[], value: number[], kind = "train") {
  const same = <T>(each: T) => step.map(() => each);
  return { step, value, name: same(name), kind: same(kind), logged_at: step.map((s) => 100 + s) };
}

it("adds scalars, in place of those that were asked for again", () => {
  const first = appendScalars(new Map(), rows("loss", [0, 1], [4, 3]), -1);
  const second = appendScalars(first, rows("loss", [1, 2], [3, NAN], "test"), 0);
  expect(second.get("loss")).toEqual({
    step: [0, 1, 2],
    value: [4, 3, NAN],
    kind: ["train", "test", "test"],
    at: [100, 101, 102],
  });
  expect(first.get("loss")?.step).toEqual([0, 1]);
});

it("keeps scalars apart", () => {
  const [loss, lr] = [rows("loss", [0, 1], [4, 3]), rows("lr", [0], [0.1])];
  const both = {
    step: [...loss.step, ...lr.step],
    value: [...loss.value, ...lr.value],
    name: [...loss.name, ...lr.name],
    kind: [...loss.kind, ...lr.kind],
    logged_at: [...loss.logged_at, ...lr.logged_at],
  };
  const found = appendScalars(new Map(), both, -1);
  expect(found.get("lr")!.value).toEqual([0.1]);
  expect(longest(found)).toBe(found.get("loss"));
  expect(longest(new Map()).step).toEqual([]);
});

function series(step: number[], value: number[]): Series {
  return { step, value, kind: step.map(() => "train"), at: step.map((s) => 100 + s) };
}

const upTo = (from: number, to: number, by = 1) =>
  Array.from({ length: Math.ceil((to - from) / by) }, (_, i) => from + i * by);

it("thins what came later like what came before, and keeps every extreme and every NaN", () => {
  // A thousand points of 80,000 steps, and 900 steps since.
  const steps = [...upTo(0, 80_000, 80), ...upTo(80_000, 80_900)];
  const values = steps.map((step) => (step === 80_333 ? 99 : Math.sin(step)));
  values[steps.indexOf(80_200)] = NAN;
  const whole = series(steps, values);
  const thin = thinLater(whole, 79_999, 500);
  expect(thin.step.length).toBeLessThan(1000 + 6 * 6 + 160);
  expect(thin.step.slice(0, 1000)).toEqual(steps.slice(0, 1000));
  expect(thin.value).toContain(99);
  expect(thin.value.some(Number.isNaN)).toBe(true);
  expect(thin.step.at(-1)).toBe(80_899);
  expect(thin.at).toEqual(thin.step.map((step) => 100 + step));
  expect(thin.kind).toHaveLength(thin.step.length);
  // Once more, it is the same.
  expect(thinLater(thin, 79_999, 500)).toBe(thin);
});

it("leaves a series alone that was not thinned", () => {
  const dense = series(upTo(0, 1900), upTo(0, 1900));
  expect(thinLater(dense, 1500, 500)).toBe(dense);
  const sparse = series(upTo(0, 90_000, 1000), upTo(0, 90));
  expect(thinLater(sparse, 80_000, 500)).toBe(sparse);
  const empty = series([], []);
  expect(thinLater(empty, -1, 500)).toBe(empty);
});
