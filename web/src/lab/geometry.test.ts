import { expect, test } from "vitest";
import { corresponding } from "./geometry";
import type { Pair } from "./picture";

const pair = (source: string, sink: string, scale: number, low: number, high: number) =>
  ({ source, sink, reach: [{ scale, low, high }] }) as unknown as Pair;
// 3 wide with padding 1, then 3 wide with stride 2 and padding 1.
const pairs = [pair("a", "b", 1, -1, 1), pair("b", "c", 2, -1, 1)];
const names = ["a", "b", "c"];

test("a cell corresponds to what it reads", () => {
  expect(corresponding(pairs, names, "c", "a", [[3, 3]])).toEqual([[4, 8]]);
});

test("a cell corresponds to what reads it", () => {
  expect(corresponding(pairs, names, "a", "c", [[6, 6]])).toEqual([[2, 4]]);
  expect(corresponding(pairs, names, "b", "b", [[6, 6]])).toEqual([[6, 6]]);
});

test("without geometry nothing corresponds", () => {
  const dense = [{ source: "a", sink: "b", reach: null } as unknown as Pair];
  expect(corresponding(dense, names, "a", "b", [[1, 1]])).toBeNull();
});
