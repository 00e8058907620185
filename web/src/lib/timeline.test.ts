import { expect, it } from "vitest";
import { curveScale, stepScale } from "./timeline";

it("goes from steps to pixels and back", () => {
  const scale = stepScale(100, 300, 10, 110);
  expect(scale.x(200)).toBe(60);
  expect(scale.stepAt(60)).toBe(200);
  expect(curveScale({ value: [0.001, 1] }).isLog).toBe(true);
  expect(curveScale({ value: [-1, 1] }).place(0)).toBe(0.5);
});
