import { expect, it } from "vitest";
import { sparkPath } from "./spark";

const { NaN: NAN } = Number;

it("draws a small line with gaps", () => {
  const spark = sparkPath([1, null, NAN, 2, 3], 100, 20);
  expect(spark.path.match(/M/g)).toHaveLength(2);
  expect(spark.gaps).toHaveLength(2);
  expect(sparkPath([1, NAN], 100, 20).end).toBeNull();
  expect(sparkPath([], 100, 20).path).toBe("");
  const many = sparkPath(
    Array.from({ length: 10_000 }, (_, i) => (i === 5000 ? 99 : 0)),
    50,
    20,
  );
  expect(many.path).toContain(" 1.5");
});
