import { describe, expect, it } from "vitest";
import { CurveMaker, timeAxis } from "./curveLines";
import { type CurveOptions, formatCurves, groupScalars, PLAIN_CURVES, parseCurves } from "./curves";

const LOSS = {
  step: [0, 1, 2, 3],
  value: [4, 5, 2, Number.NaN],
  kind: ["train", "test", "train", "test"],
  at: [100, 110, 125, 150],
};

function makerOf(options: CurveOptions, kind: string | null = null): CurveMaker {
  return new CurveMaker(new Map([["loss", LOSS]]), ["test", "train"], options, kind);
}

describe("options of curves", () => {
  it("come back from the address as they were", () => {
    const options = {
      smoothing: 0.9,
      isLog: true,
      isRobust: false,
      isTimed: true,
      isOverlaid: true,
      isByKind: false,
    };
    expect(parseCurves(formatCurves(options))).toEqual(options);
    expect(formatCurves(PLAIN_CURVES)).toBe("");
    expect(parseCurves("")).toEqual(PLAIN_CURVES);
  });

  it("ignore what makes no sense", () => expect(parseCurves("smooth-7,loud").smoothing).toBe(0.99));
});

describe("groups of scalars", () => {
  it("are those whose names begin alike", () => {
    const names = ["test_loss", "lr", "test_accuracy", "loss", "train/a", "train/b", "only_one"];
    expect(groupScalars(names)).toEqual([
      { prefix: "", names: ["loss", "lr", "only_one"] },
      { prefix: "test", names: ["test_accuracy", "test_loss"] },
      { prefix: "train", names: ["train/a", "train/b"] },
    ]);
  });

  it("take in the scalar that is called like the group", () =>
    expect(groupScalars(["grad", "grad_max"])).toEqual([
      { prefix: "grad", names: ["grad", "grad_max"] },
    ]));
});

describe("lines of a scalar", () => {
  it("are one for each kind of step", () => {
    const lines = makerOf(PLAIN_CURVES).lines("loss", LOSS, "--loss");
    expect(lines.map(({ name, x }) => [name, x])).toEqual([
      ["test", [1, 3]],
      ["train", [0, 2]],
    ]);
  });

  it("are one if kinds are not told apart, or only one is wanted", () => {
    const asOne = { ...PLAIN_CURVES, isByKind: false };
    expect(makerOf(asOne).lines("loss", LOSS, "--loss")).toEqual([
      { name: "loss", colour: "--loss", x: [0, 1, 2, 3], y: LOSS.value },
    ]);
    const [only] = makerOf(PLAIN_CURVES, "train").lines("loss", LOSS, "--loss");
    expect(only).toMatchObject({ name: "loss", x: [0, 2], y: [4, 2] });
  });

  it("keep what was smoothed, and what is not finite", () => {
    const options = { ...PLAIN_CURVES, smoothing: 0.5, isByKind: false };
    const [line] = makerOf(options).lines("loss", LOSS, "--loss");
    expect(line!.raw).toEqual(LOSS.value);
    expect(line!.y[0]).toBe(4);
    expect(line!.y[1]).toBeCloseTo((0.25 * 4 + 0.5 * 5) / 0.75);
    expect(line!.y[3]).toBeNaN();
  });

  it("stand over time, and a place is a step again", () => {
    const maker = makerOf({ ...PLAIN_CURVES, isTimed: true });
    expect(maker.place(2)).toBe(25);
    expect(maker.stepAt(26)).toBe(2);
    expect(maker.lines("loss", LOSS, "--loss").map(({ x }) => x)).toEqual([
      [10, 50],
      [0, 25],
    ]);
  });
});

describe("the axis of time", () => {
  it("has the unit in which it has few digits", () => {
    expect(timeAxis(50).unit).toBe("time, s");
    const axis = timeAxis(7200);
    expect(axis.unit).toBe("time, h");
    expect(axis.ticks(0, 7200, 4).map(axis.format)).toEqual(["0", "0.5", "1", "1.5", "2"]);
  });
});
