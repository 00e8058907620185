import { describe, expect, it } from "vitest";
import { buildGraph } from "./model";
import { Nesting } from "./nesting";
import { reachOf } from "./reach";
import { block, linear, type Sample, sampleGraph } from "./sample";
import {
  type Direction,
  type Link,
  type Placed,
  placedAs,
  type Scene,
  SceneMaker,
  SIZES,
} from "./scene";

function make(inside: Sample[], rest = {}) {
  const sample = sampleGraph(inside, rest);
  const graph = buildGraph(sample.answer, sample.sites, sample.modules);
  const maker = new SceneMaker(new Nesting(graph));
  const box = (id: string) => graph.boxById.get(id)!;
  const scene = (ids: string[], direction: Direction = "down", root = "") =>
    maker.make(box(root), new Set(["(model)", ...ids].map(box)), direction);
  const vertex = (name: string) => graph.vertexOfSite.get(sample.number(name))!;
  return { graph, scene, box, vertex };
}

const BLOCKS = [linear("embed"), block("a"), block("b", false), linear("head", "8, 2")];
const ALL = ["embed", "a", "a.norm", "a.attn", "a.attn.qkv", "a.attn.out", "b", "b.attn", "head"];

const linksOf = (scene: Scene): Link[] => scene.bundles.flatMap(({ links }) => links);

function overlaps(a: Placed, b: Placed): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

function holds(a: Placed, b: Placed): boolean {
  return (
    a.x <= b.x && a.y <= b.y && a.x + a.width >= b.x + b.width && a.y + a.height >= b.y + b.height
  );
}

function isSound(scene: Scene): void {
  for (const [i, a] of scene.placed.entries()) {
    for (const b of scene.placed.slice(i + 1)) {
      if (overlaps(a, b)) expect(holds(a, b) && a.isOpen).toBe(true);
    }
  }
}

describe("a scene", () => {
  const { graph, scene, box, vertex } = make(BLOCKS);

  it("has no overlaps, however much is open and in both directions", () => {
    for (let count = 0; count <= ALL.length; count++) {
      isSound(scene(ALL.slice(0, count)));
      isSound(scene(ALL.slice(0, count), "right"));
    }
  });

  it("leads one way", () => {
    for (const direction of ["down", "right"] as const) {
      const made = scene(ALL, direction);
      expect(linksOf(made).length).toBeGreaterThan(20);
      for (const { points, isBack } of linksOf(made)) {
        expect(isBack).toBe(false);
        const along = points.filter((_, i) => i % 2 === Number(direction === "down"));
        expect(along.slice().sort((a, b) => a - b)).toEqual(along);
      }
    }
  });

  it("ties boxes by the tensors in them", () => {
    const links = linksOf(scene([]));
    const pair = (source: string, sink: string) =>
      links.some((link) => link.source === box(source) && link.sink === box(sink));
    expect(pair("embed", "a")).toBe(true);
    expect(pair("a", "b")).toBe(true);
    expect(pair("embed", "b")).toBe(false);
  });

  it("shows a tensor itself once its box is open", () => {
    expect(scene([]).itemOfVertex[vertex("embed.weight")]).toBe(box("embed"));
    expect(scene(["embed"]).itemOfVertex[vertex("embed.weight")]).toBe(
      graph.boxes.length + vertex("embed.weight"),
    );
  });

  it("puts inputs first and outputs last", () => {
    const made = scene(["a"]);
    const y = (name: string) => placedAs(made, graph.boxes.length + vertex(name))!.y;
    expect(y("a:in.0")).toBeLessThan(placedAs(made, box("a.norm"))!.y);
    expect(y("a:out.0")).toBeGreaterThan(placedAs(made, box("a.attn"))!.y);
  });

  it("keeps the order of everything when a box opens and closes", () => {
    const order = (made: Scene) =>
      made.placed
        .filter(({ item }) => graph.boxes[item]?.parent === box("(model)"))
        .sort((a, b) => a.y - b.y || a.x - b.x)
        .map(({ item }) => item);
    const before = scene([]);
    const during = scene(["a", "a.attn"]);
    const after = scene([]);
    expect(order(during)).toEqual(order(before));
    expect(after.placed).toEqual(before.placed);
  });

  it("says of each box where what is in it ends", () => {
    const { placed } = scene(ALL);
    for (const [place, at] of placed.entries()) {
      const inside = placed.filter((other, i) => i > place && holds(at, other) && at.isOpen);
      expect(at.end).toBe(place + 1 + inside.length);
    }
  });

  it("ends each line at what it leads to, and keeps those of a box in which nothing opens", () => {
    for (const direction of ["down", "right"] as const) {
      const [before, after] = [scene(["a"], direction), scene(["a", "b", "b.attn"], direction)];
      for (const made of [before, after]) {
        for (const { box, links } of made.bundles) {
          for (const { points, source, sink, left, top, right, bottom } of links) {
            const [from, to] = [placedAs(made, source)!, placedAs(made, sink)!];
            const first = { x: points[0]! + box.x, y: points[1]! + box.y };
            const last = { x: points.at(-2)! + box.x, y: points.at(-1)! + box.y };
            expect(holds(from, { ...from, ...first, width: 0, height: 0 })).toBe(true);
            expect(holds(to, { ...to, ...last, width: 0, height: 0 })).toBe(true);
            const xs = points.filter((_, i) => i % 2 === 0);
            const ys = points.filter((_, i) => i % 2 === 1);
            expect([left, right]).toEqual([Math.min(...xs), Math.max(...xs)]);
            expect([top, bottom]).toEqual([Math.min(...ys), Math.max(...ys)]);
          }
        }
      }
      const linesIn = (made: Scene, id: string) =>
        made.bundles.find(({ box: { item } }) => item === box(id))!.links;
      expect(linesIn(after, "a")).toBe(linesIn(before, "a"));
      expect(linesIn(after, "(model)")).not.toBe(linesIn(before, "(model)"));
    }
  });

  it("shows the inside of a box alone", () => {
    const made = scene([], "down", "a");
    expect(placedAs(made, box("b"))).toBeUndefined();
    expect(made.itemOfVertex[vertex("b:out.0")]).toBe(-1);
    expect(placedAs(made, box("a.attn"))).toBeDefined();
  });

  it("leads from deep in an open box along its side, and through nothing in it", () => {
    const sample = sampleGraph(BLOCKS);
    const [from, to] = [sample.number("a.norm:out.0"), sample.number("head:out.0")];
    const edges = { ...sample.answer.edges, manual: [[from, to] as const] };
    const tied = buildGraph({ ...sample.answer, edges }, sample.sites, sample.modules);
    const open = ["(model)", "a", "a.attn"].map((id) => tied.boxById.get(id)!);
    const drawn = new SceneMaker(new Nesting(tied)).make(0, new Set(open), "down");
    const norm = tied.boxById.get("a.norm")!;
    const head = tied.boxById.get("head")!;
    const isWanted = ({ source, sink }: Link) => source === norm && sink === head;
    const bundle = drawn.bundles.find(({ links }) => links.some(isWanted))!;
    const { x: left, y: top } = bundle.box;
    const points = bundle.links.find(isWanted)!.points.map((at, i) => at + (i % 2 ? top : left));
    const attention = placedAs(drawn, tied.boxById.get("a.attn")!)!;
    const middle = attention.y + attention.height / 2;
    const below = points.findIndex((y, i) => i % 2 === 1 && y > middle);
    const [x0, y0, x1, y1] = points.slice(below - 3, below + 1) as [number, number, number, number];
    const x = x0 + ((x1 - x0) * (middle - y0)) / (y1 - y0);
    expect(x < attention.x || x > attention.x + attention.width).toBe(true);
  });

  it("gives wider boxes to a high column, which is seen from far away", () => {
    const column = Array.from({ length: 18 }, (_, i) => linear(`layer_${i}`, `${i}, ${i + 1}`));
    const tall = make(column);
    const width = (scene: Scene) => placedAs(scene, tall.box("layer_3"))!.width;
    const short = make(column.slice(0, 4));
    const usual = placedAs(short.scene([]), short.box("layer_3"))!.width;
    expect(width(tall.scene([]))).toBeGreaterThan(1.3 * usual);
    expect(width(tall.scene([], "right"))).toBe(usual);
    isSound(tall.scene([]));
  });

  it("leads back around the side", () => {
    const looped = make(BLOCKS, { loop: true }).scene([]);
    const back = linksOf(looped).filter(({ isBack }) => isBack);
    expect(back.length).toBe(1);
    isSound(looped);
  });
});

describe("reach", () => {
  const { graph, scene, box, vertex } = make(BLOCKS);
  const made = scene(["a"]);

  it("counts what is drawn on the way", () => {
    const { upOfItem, downOfItem } = reachOf(graph, made, vertex("a.attn:out.0"));
    expect(upOfItem[box("a.norm")]).toBe(1);
    expect(upOfItem[box("embed")]).toBe(3);
    expect(downOfItem[box("b")]).toBe(2);
    expect(downOfItem[box("embed")]).toBe(-1);
    expect(upOfItem[box("tensor:target")]).toBe(-1);
  });

  it("knows what a tensor does not depend on", () => {
    const { up } = reachOf(graph, made, vertex("a.norm:out.0"));
    expect(up[vertex("a.attn.qkv.weight")]).toBe(-1);
    expect(up[vertex("embed.weight")]).toBeGreaterThan(0);
  });

  it("stays within an iteration", () => {
    const looped = make(BLOCKS, { loop: true });
    const { upOfItem } = reachOf(looped.graph, looped.scene([]), looped.vertex("memory"));
    const tied = [...upOfItem.keys()].filter((item) => upOfItem[item]! >= 0);
    expect(tied).toEqual([looped.box("tensor:memory")]);
  });
});

describe("an input that is given twice", () => {
  const ends = (between: number, direction: Direction) => {
    const { graph, scene, vertex } = make(BLOCKS, { twice: between });
    const made = scene([], direction);
    isSound(made);
    const item = (place: number) => graph.boxes.length + vertex(`(model):in.${place}`);
    const [first, last] = [item(0), item(between)];
    const link = linksOf(made).find(({ source, sink }) => source === first && sink === last)!;
    return { link, from: placedAs(made, first)!, to: placedAs(made, last)!, made };
  };

  it("is tied from side to side", () => {
    const down = ends(1, "down");
    const { x } = down.made.bundles.find(({ links }) => links.includes(down.link))!.box;
    expect(down.from.y).toBe(down.to.y);
    expect(down.link.points).toHaveLength(4);
    expect(down.link.left + x).toBe(down.from.x + down.from.width);
    expect(down.link.right + x).toBe(down.to.x);
    expect(down.link.top).toBe(down.link.bottom);
    // What nothing else is tied to stands beside it, and not far away.
    expect(down.to.x - down.from.x - down.from.width).toBeLessThan(2 * SIZES.beside);
    const right = ends(1, "right");
    expect(right.from.x).toBe(right.to.x);
    expect(right.link.left).toBe(right.link.right);
  });

  it("is tied over what stands between", () => {
    const { link, from, made } = ends(2, "down");
    const { y } = made.bundles.find(({ links }) => links.includes(link))!.box;
    expect(link.top + y).toBeLessThan(from.y);
    expect(link.bottom + y).toBe(from.y);
  });
});
