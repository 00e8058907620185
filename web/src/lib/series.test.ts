import { expect, it } from "vitest";
import { appendScalars, longest } from "./series";

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
