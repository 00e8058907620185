import { expect, it } from "vitest";
import { buildGraph } from "./model";
import { ALL, inFewWords, openBoxes, toggle } from "./open";
import { linear, sampleGraph } from "./sample";

const names = Array.from({ length: 60 }, (_, i) => `layer_${i}`);
const { answer, sites, modules } = sampleGraph(names.map((name, i) => linear(name, `${i}, 2`)));
const graph = buildGraph(answer, sites, modules);
const groups = graph.boxes.filter(({ kind }) => kind === "group").map(({ id }) => id);

it("says that nearly all is open by what is not", () => {
  const toggled = [...groups, ...names];
  const few = inFewWords(graph, toggle(toggled, groups[0]!));
  expect(few).toContain(ALL);
  expect(few).toContain(groups[0]);
  expect(few.length).toBeLessThan(toggled.length);
  expect(openBoxes(graph, few)).toEqual(openBoxes(graph, toggle(toggled, groups[0]!)));
});

it("leaves few names, and what is shorter already, as they are", () => {
  expect(inFewWords(graph, groups)).toBe(groups);
  const all = [ALL, ...names];
  expect(inFewWords(graph, all)).toBe(all);
});
