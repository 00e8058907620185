import { describe, expect, it } from "vitest";
import { colourOf, rolesOf } from "./roles";

const site = (name: string, tensor_class: string, place: string, call = 1, module = "fc") => ({
  name,
  tensor_class,
  module,
  place,
  call,
});
const SITES = [
  site("fc:in.0", "input", "in.0"),
  site("fc:out.0", "output", "out.0"),
  site("fc#2:out.0", "output", "out.0", 2),
  site("fc.weight", "parameter", "weight"),
  site("fc.weight:exp_avg", "optimizer", "weight:exp_avg"),
  site("other.weight", "parameter", "weight", 1, "other"),
  site("sum 0", "tensor", "sum 0", 1, ""),
];
const labels = (name: string, ofNode = [{ name: "sum 0", label: "sequence 0" }]) =>
  rolesOf(SITES.find((each) => each.name === name)!, SITES, ofNode).map(({ label }) => label);

describe("rolesOf", () => {
  it("are what a call sees and what its module owns", () => {
    expect(labels("fc:out.0")).toEqual(["in.0", "out.0", "weight", "weight:exp_avg"]);
    expect(labels("fc#2:out.0")).toEqual(["out.0", "weight", "weight:exp_avg"]);
    expect(labels("fc.weight")).toEqual(["in.0", "out.0", "weight", "weight:exp_avg"]);
  });

  it("of a named tensor are those of its node", () => {
    expect(labels("sum 0")).toEqual(["sequence 0"]);
    expect(labels("sum 0", [])).toEqual([]);
  });
});

describe("colourOf", () => {
  it("is what the user says a tensor is, and else its class's", () => {
    const colour = (tensor_class: string, kind: string) => colourOf({ tensor_class, kind });
    expect(colour("tensor", "hidden")).toBe("hidden");
    expect(colour("tensor", "helper")).toBe("tensor");
    expect(colour("output", "")).toBe("output");
  });
});
