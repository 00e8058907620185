import { describe, expect, it } from "vitest";
import { PLAIN_CURVES } from "./curves";
import { formatSelection, NOTHING, parseSelection, type Selection } from "./selection";

const FULL: Selection = {
  run: "my project/run #1",
  view: "tensor",
  step: 1240,
  kind: "05_iterations",
  iteration: 3,
  site: "blocks.3.attn:out.0?&=<img>",
  quantity: "grad",
  statistic: "mean",
  filter: "attn|fc",
  classes: ["output", "parameter"],
  scale: "relative",
  axis: "linear",
  inside: "blocks.0…blocks.5",
  toggled: ["(model)", "a,b&c=<i>"],
  direction: "right",
  sample: "#12",
  tab: "values",
  layout: "table",
  pins: ["a&b", "c:out.0"],
  curves: PLAIN_CURVES,
  more: { with: "a/b,c d/e&f", formats: "e4m3" },
};

describe("a selection in the address", () => {
  it("comes back as it was", () => expect(parseSelection(formatSelection(FULL))).toEqual(FULL));

  it("leaves out what is as usual", () => {
    expect(formatSelection({ ...NOTHING, run: "a/b" })).toBe("#/a/b/overview");
    expect(parseSelection("#/a/b/overview")).toEqual({ ...NOTHING, run: "a/b" });
  });

  it("is nothing without a run", () => {
    for (const hash of ["", "#", "#/", "#/only"]) expect(parseSelection(hash)).toEqual(NOTHING);
    expect(formatSelection(NOTHING)).toBe("#/");
  });

  it("ignores what makes no sense", () => {
    const selection = parseSelection(
      "#/a/b/nowhere?step=x&iteration=y&scale=loud&axis=round&direction=up",
    );
    expect(selection).toEqual({ ...NOTHING, run: "a/b" });
    expect(parseSelection("#/a/%E0%A4%A/heatmap").run).toBe("a/%E0%A4%A");
  });
});
