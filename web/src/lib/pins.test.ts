import { describe, expect, it } from "vitest";
import { pinColour, placePin } from "./pins";

describe("a pin", () => {
  it("is put where it is dropped", () => {
    expect(placePin([], "a", 0)).toEqual(["a"]);
    expect(placePin(["a", "b"], "c", 1)).toEqual(["a", "c", "b"]);
    expect(placePin(["a", "b"], "c", 9)).toEqual(["a", "b", "c"]);
  });

  it("is moved if it is there already", () => {
    expect(placePin(["a", "b", "c"], "a", 2)).toEqual(["b", "a", "c"]);
    expect(placePin(["a", "b", "c"], "c", 0)).toEqual(["c", "a", "b"]);
    expect(placePin(["a", "b", "c"], "b", 1)).toEqual(["a", "b", "c"]);
  });

  it("has one colour everywhere", () => {
    expect(pinColour(["a", "b"], "b")).toBe("--line-1");
    expect(pinColour(["a", "b"], "c")).toBe(null);
  });
});
