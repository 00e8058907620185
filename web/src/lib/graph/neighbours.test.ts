import { expect, it } from "vitest";
import type { NodeRow } from "./answer";
import { neighboursOf } from "./neighbours";

it("tells what a site was made from and what was made from it, each once", () => {
  const nodes = [4, 7, 2, 9].map((site): NodeRow => [site, "output", "", "", ""]);
  const edges = {
    autograd: [
      [4, 2],
      [7, 2],
      [2, 9],
    ] as [number, number][],
    data: [[4, 2]] as [number, number][],
  };
  const { sources, sinks } = neighboursOf({ nodes, edges });
  expect(sources.get(2)).toEqual([7, 4]);
  expect(sinks.get(2)).toEqual([9]);
  expect(sinks.get(9)).toBeUndefined();
});
