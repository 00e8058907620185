import { describe, expect, it } from "vitest";
import { buildGraph } from "./model";
import { hasAny, type Moment, pickRows, ratio, spread } from "./moment";
import { Nesting } from "./nesting";
import { presenceOf } from "./presence";
import { linear, sampleGraph } from "./sample";
import { SceneMaker } from "./scene";
import { itemValues, shownVertex, withSelected } from "./values";

type Row = [site: number, iteration: number, value: number | null, nans?: number];

function momentOf(rows: Row[]): Moment {
  return {
    site: rows.map(([site]) => site),
    iteration: rows.map(([, iteration]) => iteration),
    value: rows.map(([, , value]) => value),
    nans: rows.map((row) => row[3] ?? 0),
    infs: rows.map(() => 0),
    shape: () => [2, 3],
  };
}

describe("hasAny", () => {
  it("tells a number or a mark from nothing", () => {
    expect(
      hasAny(
        momentOf([
          [0, 0, null],
          [1, 0, 2],
        ]),
      ),
    ).toBe(true);
    expect(hasAny(momentOf([[0, 0, null, 1]]))).toBe(true);
    expect(hasAny(momentOf([[0, 0, null]]))).toBe(false);
    expect(hasAny(momentOf([]))).toBe(false);
  });
});

describe("pickRows", () => {
  const rows: Row[] = [
    [0, 0, 1],
    [0, 1, 2],
    [0, 2, 3],
    [2, 2, 4],
    [3, 0, 5],
  ];
  const moment = momentOf(rows);

  it("takes one iteration, and what is of none", () => {
    expect([...pickRows(moment, 1, 3).row]).toEqual([1, -1, -1, 4]);
    expect([...pickRows(moment, 1, 3).isOutside]).toEqual([0, 0, 0, 1]);
  });

  it("takes the last of each", () => {
    expect([...pickRows(moment, null, 3).row]).toEqual([2, -1, 3, 4]);
  });
});

describe("spread", () => {
  it("has the first, the last, and some between", () => {
    expect(spread([0, 5, 10, 15, 20, 25, 30], 3)).toEqual([0, 15, 30]);
    expect(spread([4, 8], 3)).toEqual([4, 8]);
  });
});

describe("ratio", () => {
  it("has nothing where either has nothing", () => {
    const whole = momentOf([
      [0, 0, 4],
      [1, 0, 0],
      [2, 0, null],
    ]);
    const part = momentOf([
      [0, 0, 2],
      [1, 0, 1],
      [2, 0, 1],
      [3, 0, 1],
    ]);
    expect(Array.from(ratio(part, whole).value)).toEqual([0.5, null, null, null]);
  });
});

function recurrent() {
  const sample = sampleGraph([linear("layer")], { loop: true });
  const graph = buildGraph(sample.answer, sample.sites, sample.modules);
  const open = new Set([graph.boxById.get("(model)")!]);
  const scene = new SceneMaker(new Nesting(graph)).make(0, open, "down");
  const outside = ["target", "loss", "layer.weight"];
  const rows = sample.sites.flatMap(({ site, name }): Row[] =>
    outside.includes(name) ? [[site, 0, 1]] : [0, 1, 2].map((iteration) => [site, iteration, 2]),
  );
  const item = (name: string) => scene.itemOfVertex[graph.vertexOfSite.get(sample.number(name))!]!;
  return { sample, graph, scene, rows, item };
}

describe("presence", () => {
  const { graph, scene, rows, item } = recurrent();
  const at = (iteration: number, seen = rows) =>
    presenceOf(graph, scene, pickRows(momentOf(seen), iteration, 3), iteration, 3);

  it("lacks what comes from another iteration at the first, and what goes to one at the last", () => {
    expect(at(0).lacksSources).toContain(item("memory"));
    expect(at(1).lacksSources).not.toContain(item("memory"));
    expect(at(1).lacksSinks.size).toBe(0);
  });

  it("lacks nothing at the first where what it comes from was there before it", () => {
    const sources = graph.edges.source.filter((_, i) => graph.edges.isBack[i] === 1);
    expect(sources.length).toBeGreaterThan(0);
    const initial = Array.from(sources, (source): Row => [graph.vertices[source]!.site, -1, 3]);
    expect(at(0, [...initial, ...rows]).lacksSources.size).toBe(0);
  });

  it("knows that a loss after all iterations depends on the last", () => {
    expect(at(2).lacksSinks.size).toBe(0);
    const noLoop = rows.filter(([site]) => site !== 1);
    expect(at(1, noLoop).isAbsent).toContain(item("memory"));
  });
});

describe("values", () => {
  const { sample, graph, item } = recurrent();
  const number = sample.number;
  const moment = momentOf([
    [number("layer:out.0"), 0, 3],
    [number("layer.weight"), 0, -7],
    [number("x"), 0, null, 2],
  ]);
  const source = { graph, moment, picked: pickRows(moment, null, 1) };
  type Source = Parameters<typeof itemValues>[0] & { selected: number | null };
  const valuesOf = ({ selected, ...rest }: Source) =>
    withSelected(itemValues(rest), rest, selected);

  it("are those of outputs, of what is chosen, or of parameters", () => {
    const plain = valuesOf({ ...source, selected: null, isOfParameters: false });
    expect(plain.get(item("layer:out.0"))?.value).toBe(3);
    const selected = graph.vertexOfSite.get(number("layer.weight"))!;
    const chosen = valuesOf({ ...source, selected, isOfParameters: false });
    expect(chosen.get(item("layer:out.0"))?.value).toBe(-7);
    const greatest = valuesOf({ ...source, selected: null, isOfParameters: true });
    expect(greatest.get(item("layer:out.0"))).toMatchObject({ value: -7, of: 2 });
  });

  it("are of the chosen role alone, and nothing where it has none", () => {
    const memory = graph.vertexOfSite.get(number("memory"))!;
    const layer = graph.vertices[graph.vertexOfSite.get(number("layer:out.0"))!]!;
    const input = graph.vertexOfSite.get(number("layer:in.0"))!;
    const rest = { ...source, isOfParameters: false };
    expect(valuesOf({ ...rest, selected: input }).get(layer.box)).toBeUndefined();
    expect(valuesOf({ ...rest, selected: memory }).get(layer.box)?.value).toBe(3);
    expect(shownVertex(graph, layer.box, input, new Map())).toBe(input);
  });

  it("of a closed box are its own, whatever is selected in a box inside", () => {
    const model = graph.boxById.get("(model)")!;
    const seen = momentOf([
      [number("layer:out.0"), 0, 3],
      [number("(model):out.0"), 0, 5],
    ]);
    const selected = graph.vertexOfSite.get(number("layer:out.0"))!;
    const rest = { graph, moment: seen, picked: pickRows(seen, null, 1), isOfParameters: false };
    expect(valuesOf({ ...rest, selected }).get(model)?.value).toBe(5);
    expect(shownVertex(graph, model, selected, new Map())).not.toBe(selected);
  });

  it("are none of a module's parameters where its output has one at another iteration", () => {
    const seen = momentOf([
      [number("layer:out.0"), 1, 3],
      [number("layer:out.0"), 2, 4],
      [number("layer.weight"), 0, -7],
    ]);
    const at = (iteration: number) => ({ moment: seen, picked: pickRows(seen, iteration, 3) });
    const rest = { graph, selected: null, isOfParameters: false };
    expect(valuesOf({ ...rest, ...at(0) }).get(item("layer:out.0"))).toBeUndefined();
    expect(valuesOf({ ...rest, ...at(1) }).get(item("layer:out.0"))?.value).toBe(3);
  });

  it("tell NaN from nothing", () => {
    const plain = valuesOf({ ...source, selected: null, isOfParameters: false });
    expect(plain.get(item("x"))).toMatchObject({ hasNan: true, value: Number.NaN });
    expect(plain.get(item("target"))).toBeUndefined();
  });
});
