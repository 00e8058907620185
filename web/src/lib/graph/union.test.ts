import { describe, expect, it } from "vitest";
import { buildGraph } from "./model";
import { vertexItem } from "./nesting";
import { block, linear, type Sample, sampleGraph } from "./sample";
import { sidesOf } from "./sides";
import { merged, type RunGraph, unionOf } from "./union";

function drawn(one: Sample[], other: Sample[]) {
  // The other run numbers its sites from the end: only names tell what is the same.
  const theirs = sampleGraph(other) as RunGraph;
  const last = theirs.sites.length + 6;
  const turned = (site: number) => last - site;
  const union = unionOf(sampleGraph(one), {
    ...theirs,
    sites: theirs.sites.map((site) => ({ ...site, site: turned(site.site) })),
    answer: {
      ...theirs.answer,
      nodes: theirs.answer.nodes.map(([site, ...rest]) => [turned(site), ...rest]),
      edges: Object.fromEntries(
        Object.entries(theirs.answer.edges).map(([kind, pairs]) => [
          kind,
          pairs.map(([from, to]) => [turned(from), turned(to)] as const),
        ]),
      ),
    },
  });
  const owner = (site: number) => union.ownerOfSite.get(site)!;
  const graph = buildGraph(union.answer, union.sites, union.modules, owner);
  const sides = sidesOf(graph, union);
  const box = (id: string) => graph.boxById.get(id)!;
  const tensor = (name: string) =>
    vertexItem(
      graph,
      graph.vertices.findIndex((vertex) => vertex.name === name),
    );
  return { union, graph, sides, box, tensor };
}

describe("merged", () => {
  it("keeps the order of both", () => {
    expect(merged(["a", "b", "d"], ["x", "a", "c", "d", "e"]).join("")).toBe("xacbde");
    expect(merged([], ["a"])).toEqual(["a"]);
    expect(merged(["a"], [])).toEqual(["a"]);
  });
});

describe("the union of two graphs", () => {
  it("of equal ones is each of them", () => {
    const { sides, graph, union } = drawn(
      [linear("fc"), linear("out")],
      [linear("fc"), linear("out")],
    );
    const alone = sampleGraph([linear("fc"), linear("out")]);
    expect(graph.vertices.length).toBe(alone.answer.nodes.length);
    expect(union.sites.length).toBe(alone.sites.length);
    expect([sides.tensors.one, sides.tensors.other, sides.edges.one, sides.edges.other]).toEqual([
      0, 0, 0, 0,
    ]);
    expect(graph.boxes.every(({ index }) => sides.ofItem(index) === "both")).toBe(true);
  });

  it("tells what is only in one, in the other, and in both", () => {
    const { sides, box, tensor } = drawn(
      [linear("fc"), linear("old"), linear("out")],
      [linear("fc"), linear("out"), linear("new")],
    );
    expect([box("fc"), box("old"), box("new")].map(sides.ofItem)).toEqual(["both", "one", "other"]);
    expect(sides.ofItem(tensor("old.weight"))).toBe("one");
    expect(sides.signOf(tensor("new.weight"))).toBe("+");
    expect(sides.signOf(box("old"))).toBe("−");
    expect(sides.ofItem(box("(model)"))).toBe("mixed");
    expect(sides.signOf(box("(model)"))).toBe(`−${sides.tensors.one} +${sides.tensors.other}`);
    expect(sides.differing()).toEqual([box("old"), box("new")]);
    // fc → old → out in one, fc → out → new in the other.
    expect(sides.edges.one).toBeGreaterThan(0);
    expect(sides.edges.other).toBeGreaterThan(0);
    expect(sides.tensors.one).toBe(sides.tensors.other);
  });

  it("puts a module where the other run has it", () => {
    const { graph, box } = drawn(
      [linear("fc"), linear("out")],
      [linear("fc"), { name: "gate", class: "Gate", inside: [linear("in")] }, linear("out")],
    );
    const model = graph.boxes[box("(model)")]!;
    expect(model.children.map((child) => graph.boxes[child]!.label)).toEqual(["fc", "gate", "out"]);
    expect(graph.boxes[box("gate.in")]!.parent).toBe(box("gate"));
  });

  it("does not fold what both have with what only one has", () => {
    const { graph, sides } = drawn(
      ["0", "1", "2", "3", "4", "5"].map((name) => block(name)),
      ["0", "1", "2"].map((name) => block(name)),
    );
    const folds = graph.boxes.filter(({ kind }) => kind === "fold");
    expect(folds.map(({ label, index }) => [label, sides.ofItem(index)])).toEqual([
      ["0 – 2", "both"],
      ["3 – 5", "one"],
    ]);
  });

  it("tells a module with other settings from an equal one", () => {
    const { sides, box, union } = drawn([linear("fc", "8, 8")], [linear("fc", "8, 16")]);
    expect(union.changed.get("fc")).toEqual(["Linear(8, 8)", "Linear(8, 16)"]);
    expect([sides.ofItem(box("fc")), sides.signOf(box("fc"))]).toEqual(["mixed", "≠"]);
  });

  it("tells a line that only one has where both have its ends", () => {
    const { sides, graph } = drawn(
      [{ ...block("0"), skip: true }],
      [{ ...block("0"), skip: false }],
    );
    expect([sides.tensors.one, sides.tensors.other]).toEqual([0, 0]);
    expect([sides.edges.one > 0, sides.edges.other]).toEqual([true, 0]);
    const lines = Array.from(graph.edges.source, (_, edge) => sides.ofLink({ edges: [edge] }));
    expect(lines.filter((side) => side === "one").length).toBe(sides.edges.one);
  });

  it("is quick for ten thousand tensors", () => {
    const many = (from: number) =>
      Array.from({ length: 2500 }, (_, i) => linear(`layer${from + i}`));
    const started = performance.now();
    const { sides } = drawn(many(0), many(100));
    expect(sides.tensors.one).toBeGreaterThan(0);
    expect(performance.now() - started).toBeLessThan(5000);
  });
});
