import { describe, expect, it } from "vitest";
import { kindColours, marksByKind } from "./kinds";

describe("kinds of steps", () => {
  const many = Array.from({ length: 10 }, (_, i) => `${i} iterations`);

  it("have the colours of their lines, or more of a ramp", () => {
    expect(kindColours(["a", "b"], true).get("b")).toBe("var(--line-1)");
    for (const dark of [true, false]) {
      expect(new Set(kindColours(many, dark).values()).size).toBe(10);
    }
  });

  it("have a mark for each recorded step that has room", () => {
    const rows = { step: [0, 1, 10, 20], kind: ["a", "b", "b", "a"] };
    expect(marksByKind(rows, (step) => step)).toEqual(
      new Map([
        ["a", [0, 20]],
        ["b", [10]],
      ]),
    );
  });
});
