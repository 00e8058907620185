import { expect, test } from "vitest";
import { quantityFor, STATISTICS, shownTitle, statisticOf, whyNone, withOwn } from "./statistics";

test("a run's own statistics stand behind those of every run", () => {
  const all = withOwn([
    { name: "kurtosis", kind: "signed", about: "a statistic of your own" },
    { name: "rm8", kind: "magnitude", about: "eighth root" },
    { name: "odd", kind: "what no page knows", about: "" },
  ]);
  expect(all.slice(STATISTICS.length).map(({ name }) => name)).toEqual(["kurtosis", "rm8", "odd"]);
  expect(statisticOf("rm8", all).kind).toBe("magnitude");
  expect(statisticOf("odd", all).kind).toBe("signed");
  expect(statisticOf("kurtosis", all).of({ kurtosis: 3 })).toBe(3);
  expect(statisticOf("kurtosis", all).of({})).toBeNaN();
});

test("what a run does not have is told as the first statistic", () => {
  expect(statisticOf("kurtosis").name).toBe(STATISTICS[0]!.name);
});

test("a norm is that of all elements, and an update ratio is of updates whatever is selected", () => {
  expect(statisticOf("norm").of({ rms: 0.5, count: 16 })).toBe(2);
  const ratio = statisticOf("update_ratio");
  expect(ratio.of({ rms: 0.0075, update_ratio: 0.023 })).toBe(0.023);
  expect(quantityFor(ratio.name, "grad")).toBe("update");
  expect(quantityFor("norm", "grad")).toBe("grad");
  expect(shownTitle(ratio, "update")).toBe("update ratio");
  expect(shownTitle(statisticOf("norm"), "grad")).toBe("grad, norm");
  expect(whyNone(ratio, "update")).toMatch(/^No parameter has a recorded update/);
});
