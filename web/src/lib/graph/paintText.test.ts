import { describe, expect, it } from "vitest";
import { shareLine } from "./paintText";

describe("a line of a box", () => {
  it("has its number wherever the name is still to be read beside it", () => {
    expect(shareLine(137, "out.logits", "0.8491", 15)).toEqual({
      hasNumber: true,
      nameSize: 15,
      room: 10,
    });
    expect(shareLine(125, "out.logits", "0.8491", 15)).toMatchObject({
      hasNumber: true,
      nameSize: 11.5,
    });
    expect(shareLine(77, "out.0", "5.44e-6", 10)).toMatchObject({ hasNumber: true, nameSize: 10 });
    expect(shareLine(200, "loss", "1.823", 15)).toMatchObject({ hasNumber: true, nameSize: 15 });
  });

  it("has its name alone where there is no room for both", () => {
    expect(shareLine(70, "out.logits", "0.8491", 10)).toEqual({
      hasNumber: false,
      nameSize: 10,
      room: 11,
    });
    expect(shareLine(100, "name", "", 12)).toMatchObject({ hasNumber: false, nameSize: 12 });
  });
});
