import { describe, expect, it } from "vitest";
import { luminance, MARKS, pack, parseHex, ramp, rampColour } from "./colour";

describe.each(["viridis", "cividis"] as const)("%s", (name) => {
  it("gets lighter all along", () => {
    const light = Array.from({ length: 65 }, (_, i) => luminance(rampColour(name, true, i / 64)));
    expect(light).toEqual(light.toSorted((a, b) => a - b));
  });
});

describe.each([true, false])("the diverging ramp (dark: %s)", (dark) => {
  it("has the page's colour at 0 and grows away from it on both sides", () => {
    const light = Array.from({ length: 65 }, (_, i) =>
      luminance(rampColour("diverging", dark, i / 64)),
    );
    const away = light.map((l) => (dark ? l : -l));
    const sorted = (values: number[]) => values.toSorted((a, b) => a - b);
    expect(away.slice(32)).toEqual(sorted(away.slice(32)));
    expect(away.slice(0, 33).reverse()).toEqual(sorted(away.slice(0, 33)));
  });

  it("has no colour of the marks", () => {
    const { nan, inf } = MARKS[dark ? "dark" : "light"];
    const marks = [nan, inf].map((hex) => pack(parseHex(hex)));
    for (const name of ["viridis", "cividis", "diverging"] as const) {
      for (const mark of marks) expect(ramp(name, dark)).not.toContain(mark);
    }
  });
});
