import { describe, expect, it } from "vitest";
import {
  formatAge,
  formatCount,
  formatDuration,
  formatInteger,
  formatNumber,
  formatShape,
  formatShare,
  formatShort,
  formatShown,
  formatTick,
  formatValue,
} from "./format";

describe("formatNumber", () => {
  it.each([
    [1.23456, "1.235"],
    [-0.0421, "−0.04210"],
    [1.23e-7, "1.23e-7"],
    [0.001, "0.001000"],
    [0.00099, "9.90e-4"],
    [12345.6, "12,346"],
    [1.5e9, "1.500e9"],
    [0, "0"],
    [Number.NaN, "NaN"],
    [Number.POSITIVE_INFINITY, "∞"],
    [Number.NEGATIVE_INFINITY, "−∞"],
    [null, "–"],
  ])("%s is %s", (value, text) => expect(formatNumber(value)).toBe(text));
});

describe("formatTick", () => {
  it.each([
    [0, "0"],
    [0.1 + 0.2, "0.3"],
    [-2, "−2"],
    [1e-4, "1e-4"],
    [2.5e-5, "2.5e-5"],
    [1e6, "1e6"],
  ])("%s is %s", (value, text) => expect(formatTick(value)).toBe(text));
});

describe("formatShare", () => {
  it("never rounds to none or all", () => {
    expect(formatShare(0)).toBe("0 %");
    expect(formatShare(1e-6)).toBe("< 0.1 %");
    expect(formatShare(0.125)).toBe("12.5 %");
    expect(formatShare(0.99999)).toBe("> 99.9 %");
    expect(formatShare(1)).toBe("100 %");
    expect(formatShare(null)).toBe("–");
  });
});

it("formats what is not a plain number", () => {
  expect(formatInteger(1240)).toBe("1,240");
  expect(formatInteger(null)).toBe("–");
  expect(formatShort(0.012345)).toBe("0.012");
  expect(formatShape([8, 128, 256])).toBe("8 × 128 × 256");
  expect(formatShape([])).toBe("scalar");
  expect(formatValue({ a: [1] })).toBe('{"a":[1]}');
  expect(formatValue("<b>")).toBe("<b>");
  expect(formatValue([])).toBe("none");
});

it("formats times in their largest unit", () => {
  expect([0.4, 12.9, 250, 7300, 200_000].map(formatAge)).toEqual([
    "now",
    "12 s",
    "4 min",
    "2 h",
    "2 d",
  ]);
  expect([2e-5, 0.0123, 2.5, 65, 7500].map(formatDuration)).toEqual([
    "20 µs",
    "12.3 ms",
    "2.5 s",
    "1 min 05 s",
    "2 h 05 min",
  ]);
});

describe("formatCount", () => {
  it.each([
    [0, "0"],
    [999, "999"],
    [12_345, "12.3 k"],
    [1_755_648, "1.76 M"],
    [999_950, "1 M"],
    [7.24e9, "7.24 G"],
  ])("%d is %s", (count, text) => expect(formatCount(count)).toBe(text));
});

it("counts things", () => {
  expect(formatShown(1, 1, "line")).toBe("1 line");
  expect(formatShown(3, 1200, "run")).toBe("3 of 1,200 runs");
});
