import { expect, test } from "vitest";
import { damageNote, lostBands, withGaps } from "./lost";

test("a stretch reaches half-way to the steps that can be read", () => {
  expect(lostBands([[4, 6]], [0, 2, 4, 6, 8, 10])).toEqual([[3, 7]]);
  expect(lostBands([[0, 2]], [0, 2, 4])).toEqual([[0, 3]]);
  expect(lostBands([], [0, 2, 4])).toEqual([]);
});

test("a line ends where steps are lost, and goes on behind them", () => {
  const found = withGaps([0, 1, 8, 9], [[10, 11, 18, 19]], [[2, 7]]);
  expect(found).toEqual([
    [0, 1, 4.5, 8, 9],
    [10, 11, null, 18, 19],
  ]);
});

test("what lies before the first place or behind the last adds nothing", () => {
  expect(withGaps([2, 3], [[1, 1]], [[0, 1]])).toEqual([
    [2, 3],
    [1, 1],
  ]);
  expect(withGaps([], [[]], [[0, 1]])).toEqual([[], []]);
});

test("what is damaged is said, and nothing of a run that is whole", () => {
  expect(damageNote([], 0)).toBeNull();
  expect(damageNote([], 2)?.short).toBe("some damaged");
  expect(damageNote([[4, 4]], 1)?.short).toBe("step 4 damaged");
  expect(damageNote([[4, 6]], 1)?.short).toBe("steps 4 – 6 damaged");
  const several = damageNote(
    [
      [4, 6],
      [1000, 1000],
    ],
    1,
  );
  expect(several?.short).toBe("some steps damaged");
  expect(several?.whole).toContain("steps 4 – 6, 1,000 cannot be read");
});
