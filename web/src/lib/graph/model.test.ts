import { describe, expect, it } from "vitest";
import { rangeLabel } from "./fold";
import { buildGraph, type Graph } from "./model";
import { block, linear, type Sample, sampleGraph, tap } from "./sample";

function graphOf(inside: Sample[], rest = {}): Graph {
  const { answer, sites, modules } = sampleGraph(inside, rest);
  return buildGraph(answer, sites, modules);
}

const box = (graph: Graph, id: string) => graph.boxes[graph.boxById.get(id)!]!;
const labels = (graph: Graph, id: string) =>
  box(graph, id).children.map((child) => graph.boxes[child]!.label);

describe("nesting", () => {
  const graph = graphOf([linear("first"), block("block")]);

  it("follows the calls, and puts named tensors beside the model", () => {
    expect(labels(graph, "")).toEqual(["(model)", "x", "target", "loss"]);
    expect(labels(graph, "(model)")).toEqual(["first", "block"]);
    expect(labels(graph, "block.attn")).toEqual(["qkv", "out"]);
  });

  it("puts what a forward names into its module, where it is made", () => {
    const tapped = (name: string) => ({
      ...linear(name),
      inside: [linear("a"), tap("middle"), linear("b")],
    });
    const one = graphOf([linear("first"), tapped("block"), linear("last")]);
    expect(labels(one, "block")).toEqual(["a", "middle", "b"]);
    expect(labels(one, "")).toEqual(["(model)", "x", "target", "loss"]);
    expect(labels(graphOf(["0", "1", "2"].map(tapped)), "(model)")).toEqual(["0 – 2"]);
    const between = ["0", "1", "2"].flatMap((name) => [linear(name), tap(`after ${name}`)]);
    expect(labels(graphOf(between), "(model)")).toEqual(between.map(({ name }) => name));
  });

  it("gives every tensor to its module", () => {
    const roles = box(graph, "first").vertices.map((index) => graph.vertices[index]!.role);
    expect(roles).toEqual(["in.0", "weight", "out.0"]);
  });

  it("colours tensors by what they are", () => {
    const colour = (name: string) => graph.vertices.find((vertex) => vertex.name === name)?.colour;
    expect(["x", "target", "loss", "first.weight", "first:out.0"].map(colour)).toEqual([
      "input",
      "target",
      "loss",
      "parameter",
      "output",
    ]);
  });

  it("leaves out sites that the run does not know yet", () => {
    const { answer, sites, modules } = sampleGraph([linear("first")]);
    const half = buildGraph(answer, sites.slice(0, 3), modules);
    expect(half.vertices.length).toBe(3);
    expect(half.edges.source.length).toBe(2);
  });

  it("gives a parameter of a module that is never called to the nearest that is", () => {
    const { answer, sites, modules } = sampleGraph([linear("first")]);
    const odd = { ...sites[0]!, site: 99, name: "first.inner.p", tensor_class: "parameter" };
    const more = [...sites, { ...odd, module: "first.inner", place: "p" }];
    const nodes = [...answer.nodes, [99, "parameter", "", "p", ""] as const];
    const graph = buildGraph({ ...answer, nodes }, more, modules);
    expect(graph.boxes[graph.vertices.at(-1)!.box]!.id).toBe("first");
  });
});

describe("folding", () => {
  it("makes equal siblings one box with a count", () => {
    const graph = graphOf([linear("embed"), ...[0, 1, 2, 3].map((i) => block(`blocks.${i}`))]);
    expect(labels(graph, "(model)")).toEqual(["embed", "blocks.0 – 3"]);
    const fold = box(graph, "blocks.0…blocks.3");
    expect([fold.kind, fold.count, fold.about, fold.children.length]).toEqual([
      "fold",
      4,
      "Block",
      4,
    ]);
  });

  it("leaves unequal siblings alone", () => {
    const sizes = ["8, 8", "8, 16", "16, 8", "8, 4"];
    const graph = graphOf(sizes.map((extra, i) => linear(`${i}`, extra)));
    expect(labels(graph, "(model)")).toEqual(["0", "1", "2", "3"]);
  });

  it("finds a pattern of several", () => {
    const layers = Array.from({ length: 9 }, (_, i) =>
      i % 3 === 0 ? linear(`${i}`) : { name: `${i}`, class: i % 3 === 1 ? "ReLU" : "Dropout" },
    );
    const graph = graphOf([...layers, linear("last", "8, 2")]);
    expect(labels(graph, "(model)")).toEqual(["0 – 8", "last"]);
    const fold = box(graph, "(model)").children[0]!;
    expect(graph.boxes[fold]!.count).toBe(3);
    expect(graph.boxes[fold]!.children.map((child) => graph.boxes[child]!.label)).toEqual([
      "0 – 2",
      "3 – 5",
      "6 – 8",
    ]);
  });

  it("puts many siblings into groups, none of them large", () => {
    const graph = graphOf(Array.from({ length: 1000 }, (_, i) => linear(`${i}`, `${i}`)));
    expect(Math.max(...graph.boxes.map(({ children }) => children.length))).toBeLessThanOrEqual(20);
    expect(new Set(graph.boxes.map(({ id }) => id)).size).toBe(graph.boxes.length);
  });

  it("says a range briefly", () => {
    expect(rangeLabel("blocks.0", "blocks.11")).toBe("blocks.0 – 11");
    expect(rangeLabel("a", "b")).toBe("a – b");
    expect(rangeLabel("0 – 2", "6 – 8")).toBe("0 – 8");
  });
});

describe("circles", () => {
  it("mark only the edge that leads back", () => {
    const graph = graphOf([linear("first")], { loop: true });
    const { source, sink, isBack } = graph.edges;
    const back = [...isBack.keys()].filter((i) => isBack[i]);
    const name = (vertex: number) => graph.vertices[vertex]!.name;
    expect(back.map((i) => [name(source[i]!), name(sink[i]!)])).toEqual([
      ["(model):out.0", "memory"],
    ]);
  });
});
