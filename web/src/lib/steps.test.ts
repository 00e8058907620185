import { describe, expect, it } from "vitest";
import { appendSteps, NO_ROWS, rowBeside, rowNear, type StepRows } from "./steps";

/** Every tenth step was recorded; 0, 40 and all from 100 on are held. */
const PLACES = [0, 4, 10, 11, 12];
const ROWS: StepRows = {
  step: PLACES.map((place) => 10 * place),
  place: PLACES,
  iterations: PLACES.map(() => 1),
  kind: PLACES.map(() => "train"),
  graph: PLACES.map(() => ""),
};

describe("the recorded step nearest to one", () => {
  it("is known where none is left out", () => {
    expect([0, 40, 100, 104, 106, 120].map((step) => ROWS.step[rowNear(ROWS, step)])).toEqual([
      0, 40, 100, 100, 110, 120,
    ]);
  });

  it("is not known between those that do not follow each other", () =>
    expect([1, 39, 41, 99].map((step) => rowNear(ROWS, step))).toEqual([-1, -1, -1, -1]));

  it("is an end for all that lies beyond", () => {
    expect(rowNear(ROWS, 9999)).toBe(4);
    const late = { ...ROWS, step: ROWS.step.map((step) => step + 50) };
    expect(rowNear(late, 3)).toBe(0);
    expect(rowNear(NO_ROWS, 3)).toBe(-1);
  });
});

describe("the recorded step beside another", () => {
  it("is found if it is held", () => {
    expect(rowBeside(ROWS, 2, 1)).toBe(3);
    expect(rowBeside(ROWS, 4, -2)).toBe(2);
    expect(rowBeside(ROWS, 1, -4)).toBe(0);
    expect(rowBeside(ROWS, 1, 1)).toBe(-1);
  });

  it("is no further than the ends", () => {
    expect(rowBeside(ROWS, 3, 10)).toBe(4);
    expect(rowBeside(ROWS, 1, -10)).toBe(0);
  });
});

it("adds later steps", () => {
  const later = { step: [130], place: [13], iterations: [2], kind: ["test"], graph: ["g"] };
  const all = appendSteps(ROWS, later);
  expect(all.step).toEqual([0, 40, 100, 110, 120, 130]);
  expect(all.kind.at(-1)).toBe("test");
  expect(ROWS.step).toHaveLength(5);
  expect(appendSteps(ROWS, NO_ROWS)).toBe(ROWS);
});
