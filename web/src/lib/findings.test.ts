import { describe, expect, it } from "vitest";
import type { Finding } from "../connectors/findings";
import { adviceOf, evidenceName, faultName, isAbout, toldFindings } from "./findings";

function finding(id: string, score: number, because_of: string | null = null): Finding {
  const [fault = "", where = ""] = id.split("@");
  const words = { why: "", try_this: "", source: "" };
  return { id, fault, where, step: 0, score, because_of, explains: [], evidence: [], ...words };
}

const ALL = [
  finding("data_scale@data", 0.9),
  finding("exploding_gradient@fc", 0.7, "data_scale@data"),
  finding("nonfinite@fc", 0.8, "exploding_gradient@fc"),
  finding("lr_too_high@optimizer", 0.3),
];

const ids = (told: ReturnType<typeof toldFindings>): unknown =>
  told.map(({ finding: { fault }, symptoms }) => [fault, ids(symptoms)]);

describe("findings", () => {
  it("hang under what explains them, and the unsure are left out", () => {
    expect(ids(toldFindings(ALL, new Set(), false))).toEqual([
      ["data_scale", [["exploding_gradient", [["nonfinite", []]]]]],
    ]);
  });

  it("stand for themselves where their cause is muted", () => {
    expect(ids(toldFindings(ALL, new Set(["data_scale@data"]), false))).toEqual([
      ["exploding_gradient", [["nonfinite", []]]],
    ]);
  });

  it("are all told if asked, also those that explain each other", () => {
    const circle = [finding("a@x", 0.9, "b@x"), finding("b@x", 0.9, "a@x"), finding("c@x", 0.1)];
    expect(ids(toldFindings(circle, new Set(), true))).toEqual([
      ["c", []],
      ["a", [["b", []]]],
    ]);
    expect(ids(toldFindings(ALL, new Set(["nonfinite@fc"]), true))).toEqual([
      ["data_scale", [["exploding_gradient", [["nonfinite", []]]]]],
      ["lr_too_high", []],
    ]);
  });

  it("have names for people", () => {
    expect(faultName("lr_too_high")).toBe("Learning rate too high");
    expect(faultName("dead_units")).toBe("Dead units");
  });
});

it("is about a site in its place, or that speaks for it", () => {
  const evidence = [{ site: "head:out.0" }] as Finding["evidence"];
  const one = { ...finding("dead@blocks.1", 1), evidence };
  const site = (name: string, module: string) => ({ name, module });
  expect(isAbout(one, site("blocks.1.fc:out.0", "blocks.1.fc"))).toBe(true);
  expect(isAbout(one, site("head:out.0", "head"))).toBe(true);
  expect(isAbout(one, site("blocks.10:out.0", "blocks.10"))).toBe(false);
  expect(isAbout({ ...one, where: "" }, site("x", ""))).toBe(false);
});

it("says what to try apart from the line that it is about", () => {
  const one = {
    ...finding("a@x", 1),
    source: "train.py:7",
    try_this: "Remove the minus: train.py:7: loss = -x",
  };
  expect(adviceOf(one)).toEqual({ text: "Remove the minus.", code: "train.py:7: loss = -x" });
  expect(adviceOf({ ...one, try_this: "Wait." })).toEqual({ text: "Wait.", code: "train.py:7" });
  expect(adviceOf({ ...one, try_this: "Wait.", source: "" })).toEqual({ text: "Wait.", code: "" });
});

it("names evidence as people do", () => {
  const evidence = {
    site: "fc.weight",
    quantity: "grad",
    statistic: "rms",
    steps: [],
    values: [],
    text: "",
  };
  expect(evidenceName(evidence)).toBe("rms of fc.weight, gradient");
  expect(evidenceName({ ...evidence, quantity: "value", statistic: "dead_units" })).toBe(
    "dead units of fc.weight",
  );
  expect(evidenceName({ ...evidence, site: "", text: "lowest label" })).toBe("lowest label");
  expect(evidenceName({ ...evidence, site: "(loss)", quantity: "value", statistic: "mean" })).toBe(
    "loss",
  );
});
