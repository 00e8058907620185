import { expect, test } from "vitest";
import { boxOf, corresponding, moved, seenIn } from "./geometry";
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

test("a volume's box is seen in the slices that it spans", () => {
  const shape = [2, 4, 6, 6];
  const box = boxOf(shape, 1 * 144 + 2 * 36 + 3 * 6 + 5);
  expect(box).toEqual([
    [2, 2],
    [3, 3],
    [5, 5],
  ]);
  expect(seenIn(shape, 1 * 4 + 2, box)).toEqual({ x: 5, y: 3, columns: 1, rows: 1 });
  expect(seenIn(shape, 2, box)).toEqual({ x: 5, y: 3, columns: 1, rows: 1 });
  expect(seenIn(shape, 1, box)).toBeNull();
});

test("a sequence's box spans its channels, and a box is cut at the edge", () => {
  expect(seenIn([3, 8], 0, boxOf([3, 8], 13))).toEqual({ x: 5, y: 0, columns: 1, rows: 3 });
  expect(
    seenIn([1, 4, 4], 0, [
      [-2, 1],
      [3, 9],
    ]),
  ).toEqual({ x: 3, y: 0, columns: 1, rows: 2 });
  expect(
    moved(
      [
        [1, 1],
        [2, 3],
      ],
      [1, -1],
    ),
  ).toEqual([
    [2, 2],
    [1, 2],
  ]);
});
