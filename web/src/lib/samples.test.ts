import { expect, test } from "vitest";
import type { KeptRow, SampleRow } from "../connectors/kept";
import {
  askedSample,
  isOne,
  MEAN,
  meanOfSamples,
  noneOfSample,
  type SampleQuestion,
  sampleHistory,
  sampleNote,
  whyNotOfSample,
} from "./samples";
import { statisticOf } from "./statistics";

const kept = (sample: number | null, values: number[], positions: number[] | null = null) =>
  ({ sample, data_index: null, values, positions, neuron_step: 1, note: "" }) as unknown as KeptRow;

test("the mean over the batch is that of each neuron", () => {
  const [mean] = meanOfSamples([kept(0, [1, 2]), kept(3, [3, 6]), kept(5, [2, 1])]);
  expect(Array.from(mean!.values)).toEqual([2, 3]);
  expect(mean!.sample).toBeNull();
  expect(mean!.note).toBe("mean of 3 kept samples");
});

test("neurons are found by their positions, and NaN stays", () => {
  const [mean] = meanOfSamples([kept(0, [1, 2], [4, 9]), kept(1, [6, Number.NaN], [9, 4])]);
  expect(Array.from(mean!.values)).toEqual([Number.NaN, 4]);
});

test("what has no batch is its own mean", () => {
  const rows = [kept(null, [1, 2])];
  expect(meanOfSamples(rows)).toEqual(rows);
});

test("a sample's history has one row a step, of the iteration that is meant", () => {
  const row = (step: number, sample: number, iteration: number, mean: number) =>
    ({ step, sample, data_index: null, iteration, mean }) as SampleRow;
  const rows = [
    row(0, 2, 0, 1),
    row(0, 2, 1, 2),
    row(0, 3, 1, 9),
    row(5, 2, 0, 3),
    row(5, 2, 1, 4),
  ];
  expect(sampleHistory(rows, "2", null).rows.map(({ mean }) => mean)).toEqual([2, 4]);
  expect(sampleHistory(rows, "2", 0).rows.map(({ mean }) => mean)).toEqual([1, 3]);
  expect(sampleHistory(rows, "7", null).rows).toEqual([]);
});

test("numbers of the whole batch are said to be", () => {
  expect([isOne(null), isOne(MEAN), isOne("2")]).toEqual([false, false, true]);
  expect(sampleNote(null, null)).toBe("");
  expect(sampleNote("2", null)).toBe("of the whole batch");
  expect(sampleNote(MEAN, null)).toBe("of the whole batch");
  expect(sampleNote("2", "2")).toBe("of sample 2");
});

const asked = (part: Partial<SampleQuestion>): SampleQuestion => ({
  sample: "3",
  quantity: "value",
  statistic: statisticOf("rms"),
  hasSamples: true,
  isFile: false,
  ...part,
});

test("a question is about one sample, or about whole batches", () => {
  expect([askedSample("3"), askedSample("#17")]).toEqual(["3", "#17"]);
  expect([askedSample(null), askedSample(MEAN)]).toEqual([null, null]);
});

test("what was recorded of a sample, or follows from it, can be asked for", () => {
  for (const name of ["mean", "abs_mean", "std", "abs_max", "rms", "norm", "min", "zero_share"])
    expect(whyNotOfSample(asked({ statistic: statisticOf(name) }))).toBeNull();
  expect(whyNotOfSample(asked({ statistic: null }))).toBeNull();
});

test("what is not known of a sample has its reason, but not of whole batches", () => {
  const dead = asked({ statistic: statisticOf("dead_share") });
  expect(whyNotOfSample(dead)).toContain("dead is told of whole batches alone");
  expect(whyNotOfSample({ ...dead, sample: null })).toBeNull();
  expect(whyNotOfSample({ ...dead, sample: MEAN })).toBeNull();
  expect(whyNotOfSample(asked({ quantity: "grad_applied" }))).toBe(
    "grad applied is of parameters, which have no samples.",
  );
  expect(whyNotOfSample(asked({ statistic: statisticOf("update_ratio") }))).toBe(
    "update ratio is of parameters, which have no samples.",
  );
  expect(whyNotOfSample(asked({ hasSamples: false }))).toContain("samples=8");
  expect(whyNotOfSample(asked({ isFile: true }))).toContain("This file has whole batches here");
});

test("a sample that was not kept is told from one that was not kept whole", () => {
  expect(noneOfSample("3", "at step 5", statisticOf("rms"))).toContain(
    "Nothing of sample 3 was recorded at step 5",
  );
  expect(noneOfSample("3", "at step 5", statisticOf("min"))).toContain("not all values");
  expect(noneOfSample("3", "at step 5", null)).toContain("its exponents are told");
});
