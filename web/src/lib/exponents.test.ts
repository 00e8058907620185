import { expect, test } from "vitest";
import type { NumberFormat } from "../connectors/analyses";
import {
  countsOn,
  exponentAxis,
  highest,
  lowest,
  powerOfTwo,
  shortFormat,
  suggestionOf,
} from "./exponents";

const HALF: NumberFormat = {
  name: "float16",
  overflow: 65520,
  negative_overflow: 65520,
  underflow: 2 ** -25,
  normal: 2 ** -14,
};
const made = (exponent: number[], count = 1) => ({
  exponents: { exponent, negative: exponent.map(() => 0), positive: exponent.map(() => count) },
});

test("a format's ends are its least and its greatest exponent", () => {
  expect([lowest(HALF), highest(HALF)]).toEqual([-24, 15]);
});

test("the axis holds all sites, and the ends of formats that are near", () => {
  const axis = exponentAxis([made([-20, -3]), made([1])], [HALF]);
  expect(axis.low).toBeLessThanOrEqual(-24);
  expect(axis.high).toBeLessThan(15);
  expect(axis.ticks.length).toBeGreaterThan(2);
  const none = exponentAxis([], []);
  expect(none.high - none.low).toBeGreaterThan(10);
});

test("every element is counted once, at its exponent", () => {
  const axis = exponentAxis([made([-2, 0, 5])], []);
  const counts = countsOn(axis, made([-2, 0, 5], 3));
  expect(counts.reduce((a, b) => a + b)).toBe(9);
  expect(counts[-2 - axis.low]).toBe(3);
});

test("powers and formats are written as people write them", () => {
  expect(powerOfTwo(-24)).toBe("2⁻²⁴");
  expect(["float8_e4m3fn", "bfloat16", "float16", "float4_e2m1fn"].map(shortFormat)).toEqual([
    "fp8 e4m3fn",
    "bf16",
    "fp16",
    "fp4 e2m1fn",
  ]);
});

test("where no scale is suggested, it says whether anything is lost at all", () => {
  expect(suggestionOf({ overflow: 0, underflow: 0, subnormal: 0 })).toBe("none needed");
  expect(suggestionOf({ overflow: 0.13, underflow: 0.15, subnormal: 0 })).toBe("no scale helps");
});
