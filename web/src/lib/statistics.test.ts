import { expect, test } from "vitest";
import { STATISTICS, statisticOf, withOwn } from "./statistics";

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
