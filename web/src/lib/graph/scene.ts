import type { Layering } from "./layers";
import type { Box, Vertex } from "./model";
import { type Item, isVertexItem, type Nesting } from "./nesting";
import { type Anchors, type Placement, place } from "./place";

export type Direction = "down" | "right";

/** Something that is drawn, at its place in the whole picture. */
export interface Placed {
  item: Item;
  x: number;
  y: number;
  width: number;
  height: number;
  isOpen: boolean;
  depth: number;
  /** Where in the scene's list that begins which is no longer in it. */
  end: number;
}

/** A line between two things that are drawn: one or more edges of the graph. */
export interface Link {
  source: Item;
  sink: Item;
  /** x and y of its points, from end to end, as seen from the corner of the box that it is drawn in. */
  points: number[];
  left: number;
  top: number;
  right: number;
  bottom: number;
  isBack: boolean;
  edges: number[];
}

/** The lines that are drawn in one open box. They are the same for as long as nothing opens or closes in it. */
export interface Bundle {
  box: Placed;
  links: readonly Link[];
}

export interface Scene {
  root: number;
  direction: Direction;
  width: number;
  height: number;
  /** Boxes before what is in them. */
  placed: Placed[];
  /** Of each item its place in that list, or -1: see `placedAs`. */
  placeOf: Int32Array;
  bundles: Bundle[];
  /** What a vertex of the graph is drawn as: itself, or a box that holds it; -1 outside. */
  itemOfVertex: Int32Array;
}

/** What something is drawn as, if it is in the scene. */
export function placedAs({ placed, placeOf }: Scene, item: Item | null): Placed | undefined {
  return item === null ? undefined : placed[placeOf[item] ?? -1];
}

export const SIZES = {
  box: { width: 180, height: 40 },
  widest: 264,
  pill: { width: 136, height: 22 },
  header: 28,
  pad: 14,
  beside: 22,
  between: 24,
  /** Beside a column of things, for each line that leads back. */
  back: 14,
};

/** Of what is higher than this, boxes are drawn smaller than their words. */
const UNSHRUNK = 640;
const MOST_WIDENING = 2;

/** So far from the edge of an open box, something has others between it and what it is tied to outside. */
const DEEP = 90;

interface BoxLayout {
  width: number;
  height: number;
  placement: Placement | null;
  backs: number;
  links: Link[] | null;
}

/** Lays out what is open. What did not change since the last time is kept. */
export class SceneMaker {
  private readonly layouts = new Map<number, BoxLayout>();
  private readonly widths = new Map<number, number>();
  private open: ReadonlySet<number> = new Set();
  private direction: Direction = "down";

  constructor(readonly nesting: Nesting) {}

  make(root: number, open: ReadonlySet<number>, direction: Direction): Scene {
    this.forget(open, direction);
    const { boxes, vertices } = this.nesting.graph;
    const size = this.layout(root);
    const scene: Scene = {
      root,
      direction,
      width: size.width,
      height: size.height,
      placed: [],
      placeOf: new Int32Array(boxes.length + vertices.length).fill(-1),
      bundles: [],
      itemOfVertex: new Int32Array(vertices.length).fill(-1),
    };
    this.put(scene, root, 0, 0, 0);
    for (const box of scene.placed) {
      if (box.isOpen) scene.bundles.push({ box, links: this.linksIn(scene, box) });
    }
    return scene;
  }

  private forget(open: ReadonlySet<number>, direction: Direction): void {
    if (direction !== this.direction) {
      this.layouts.clear();
      this.widths.clear();
    }
    const { boxes } = this.nesting.graph;
    for (const changed of [...open].filter((box) => !this.open.has(box))) this.drop(changed, boxes);
    for (const changed of [...this.open].filter((box) => !open.has(box))) this.drop(changed, boxes);
    this.open = new Set(open);
    this.direction = direction;
  }

  private drop(box: number, boxes: readonly Box[]): void {
    for (let at = box; at >= 0; at = boxes[at]!.parent) this.layouts.delete(at);
  }

  private layout(index: number): BoxLayout {
    let found = this.layouts.get(index);
    if (!found) {
      found = this.compute(index);
      this.layouts.set(index, found);
    }
    return found;
  }

  private sizeOf(item: Item): { width: number; height: number } {
    const { graph } = this.nesting;
    if (isVertexItem(graph, item)) return SIZES.pill;
    if (this.open.has(item)) return this.layout(item);
    return { width: this.widthIn(graph.boxes[item]!.parent), height: SIZES.box.height };
  }

  /** Boxes beside and below each other are of one width: as much as the longest name among them needs. */
  private widthIn(parent: number): number {
    let found = this.widths.get(parent);
    if (found === undefined) {
      const { boxes } = this.nesting.graph;
      const needs = boxes[parent]!.children.map((child) => neededWidth(boxes[child]!));
      const wanted = Math.min(SIZES.widest, Math.max(SIZES.box.width, ...needs));
      found = Math.round(wanted * this.widening(parent, wanted));
      this.widths.set(parent, found);
    }
    return found;
  }

  /** A high column is seen from far away, where words do not shrink as much as boxes: as it has room at
   * its sides, its boxes are wider. */
  private widening(parent: number, width: number): number {
    if (this.direction === "right") return 1;
    const { rows } = this.nesting.arrangement(parent).layering;
    const height = rows.length * (SIZES.box.height + SIZES.between);
    const beside = Math.max(1, ...rows.map((row) => row.length));
    const room = height / (beside * (width + SIZES.beside));
    return Math.max(1, Math.min(MOST_WIDENING, height / UNSHRUNK, room));
  }

  private compute(index: number): BoxLayout {
    const { items, layering, pairs } = this.nesting.arrangement(index);
    const isDown = this.direction === "down";
    const sizes = items.map((item) => {
      const { width, height } = this.sizeOf(item);
      return isDown ? { across: width, along: height } : { across: height, along: width };
    });
    const gaps = isDown
      ? { beside: SIZES.beside, between: SIZES.between }
      : { beside: SIZES.beside / 1.5, between: SIZES.between * 1.5 };
    const placement = place(layering, sizes, gaps, this.anchors(index));
    const backs = pairs.filter((pair, i) => layering.isBack[i] && !besides(layering, pair)).length;
    const across = placement.across + (backs > 0 ? SIZES.back * (backs + 1) : 0);
    const [width, height] = isDown ? [across, placement.length] : [placement.length, across];
    return {
      width: Math.max(SIZES.box.width, width) + 2 * SIZES.pad,
      height: height + SIZES.header + SIZES.pad,
      placement,
      backs,
      links: null,
    };
  }

  /** Lines begin and end at the tensors of an open box, and not in its middle. */
  private anchors(index: number): Anchors {
    const { edges, boxes, vertices } = this.nesting.graph;
    const { items, pairs, pairOfEdge } = this.nesting.arrangement(index);
    const sums = pairs.map(() => [0, 0, 0] as [number, number, number]);
    if (!items.some((item) => this.open.has(item))) return () => [0, 0];
    for (const [edge, pair] of pairOfEdge) {
      const [source, sink] = pairs[pair]!;
      const sum = sums[pair]!;
      sum[0] += this.portAt(items[source]!, edges.source[edge]!, boxes, vertices);
      sum[1] += this.portAt(items[sink]!, edges.sink[edge]!, boxes, vertices);
      sum[2]++;
    }
    return (pair) => {
      const [source, sink, count] = sums[pair]!;
      return [source / Math.max(1, count), sink / Math.max(1, count)];
    };
  }

  private portAt(item: Item, vertex: number, boxes: readonly Box[], vertices: readonly Vertex[]) {
    if (item >= boxes.length || !this.open.has(item) || vertices[vertex]!.box !== item) return 0;
    const { placement, width, height } = this.layout(item);
    const place = this.nesting.arrangement(item).items.indexOf(boxes.length + vertex);
    const at = placement!.middle[place]!;
    if (this.direction === "right") return SIZES.header + at - height / 2;
    return this.contentLeft(this.layout(item)) + at - width / 2;
  }

  private contentLeft({ placement, backs, width }: BoxLayout): number {
    const isDown = this.direction === "down";
    const across = placement!.across + (backs > 0 ? SIZES.back * (backs + 1) : 0);
    return Math.round((width - (isDown ? across : placement!.length)) / 2);
  }

  /** Puts a box and all that is seen in it into the scene. */
  private put(scene: Scene, item: Item, x: number, y: number, depth: number): void {
    const { graph } = this.nesting;
    const isOpen = item === scene.root || this.open.has(item);
    const { width, height } = isOpen ? this.layout(item) : this.sizeOf(item);
    const placed: Placed = { item, x, y, width, height, isOpen, depth, end: 0 };
    scene.placeOf[item] = scene.placed.length;
    scene.placed.push(placed);
    if (isVertexItem(graph, item)) scene.itemOfVertex[item - graph.boxes.length] = item;
    else if (!isOpen) this.cover(scene, item, item);
    else this.fill(scene, placed);
    placed.end = scene.placed.length;
  }

  private fill(scene: Scene, box: Placed): void {
    const { items } = this.nesting.arrangement(box.item);
    const { placement } = this.layout(box.item);
    const { x, y } = this.inside(box);
    for (const [place, item] of items.entries()) {
      const { width, height } = this.sizeOf(item);
      const middle = placement!.middle[place]!;
      const start = placement!.start[place]!;
      if (scene.direction === "down")
        this.put(scene, item, x + middle - width / 2, y + start, box.depth + 1);
      else this.put(scene, item, x + start, y + middle - height / 2, box.depth + 1);
    }
  }

  /** Where the content of an open box begins; a narrow one is in the middle. */
  private inside(box: Placed): { x: number; y: number } {
    return { x: box.x + this.contentLeft(this.layout(box.item)), y: box.y + SIZES.header };
  }

  private cover(scene: Scene, box: number, item: Item): void {
    const { boxes } = this.nesting.graph;
    const todo = [box];
    while (todo.length > 0) {
      const { vertices, children } = boxes[todo.pop()!]!;
      for (const vertex of vertices) scene.itemOfVertex[vertex] = item;
      todo.push(...children);
    }
  }

  private linksIn(scene: Scene, box: Placed): Link[] {
    const layout = this.layout(box.item);
    layout.links ??= this.link(scene, box);
    return layout.links;
  }

  private link(scene: Scene, box: Placed): Link[] {
    const { edges } = this.nesting.graph;
    const { items, pairs, pairOfEdge, layering } = this.nesting.arrangement(box.item);
    const known = new Map<number, Link>();
    let back = 0;
    for (const [edge, pair] of pairOfEdge) {
      const source = scene.itemOfVertex[edges.source[edge]!]!;
      const sink = scene.itemOfVertex[edges.sink[edge]!]!;
      const key = source * scene.itemOfVertex.length * 2 + sink;
      let link = known.get(key);
      if (!link) {
        const isBack = layering.isBack[pair]!;
        const between = isBack ? besides(layering, pairs[pair]!) : null;
        const points = between
          ? acrossRow(scene, source, sink, between.isNext)
          : isBack
            ? this.aroundSide(scene, box, source, sink, back++)
            : this.along(scene, box, source, sink, layering.bends[pair]!);
        if (!isBack && scene.direction === "down") {
          const [upper, lower] = pairs[pair]!.map((place) => placedAs(scene, items[place]!)!);
          points.splice(2, 0, ...leaving(placedAs(scene, source)!, upper!));
          points.splice(-2, 0, ...reaching(placedAs(scene, sink)!, lower!));
        }
        link = { source, sink, ...seenFrom(box, points), isBack, edges: [] };
        known.set(key, link);
      }
      link.edges.push(edge);
    }
    return [...known.values()];
  }

  private along(scene: Scene, box: Placed, source: Item, sink: Item, bends: readonly number[]) {
    const { placement } = this.layout(box.item);
    const from = placedAs(scene, source)!;
    const to = placedAs(scene, sink)!;
    const { x, y } = this.inside(box);
    const isDown = scene.direction === "down";
    const points = isDown
      ? [from.x + from.width / 2, from.y + from.height]
      : [from.x + from.width, from.y + from.height / 2];
    for (const bend of bends) {
      const middle = placement!.middle[bend]!;
      const start = placement!.start[bend]!;
      const end = start + placement!.along[bend]!;
      if (isDown) points.push(x + middle, y + start, x + middle, y + end);
      else points.push(x + start, y + middle, x + end, y + middle);
    }
    if (isDown) points.push(to.x + to.width / 2, to.y);
    else points.push(to.x, to.y + to.height / 2);
    return points;
  }

  /** Out at the end of one, past all that stands between them, and in at the beginning of the other. */
  private aroundSide(scene: Scene, box: Placed, source: Item, sink: Item, number: number) {
    const from = placedAs(scene, source)!;
    const to = placedAs(scene, sink)!;
    const { placement } = this.layout(box.item);
    const { x, y } = this.inside(box);
    const far = placement!.across + SIZES.back * (number + 1);
    const gap = SIZES.between / 2 - 2;
    if (scene.direction === "down") {
      const [a, b] = [from.x + from.width / 2, to.x + to.width / 2];
      const [low, high] = [from.y + from.height, to.y];
      const turn = [a, low + gap, x + far, low + gap, x + far, high - gap, b, high - gap];
      return [a, low, ...turn, b, high];
    }
    const [a, b] = [from.y + from.height / 2, to.y + to.height / 2];
    const [late, early] = [from.x + from.width, to.x];
    const turn = [late + gap, a, late + gap, y + far, early - gap, y + far, early - gap, b];
    return [late, a, ...turn, early, b];
  }
}

/** Whether two things stand in one row, and there next to each other; null if they do not. */
function besides({ rows }: Layering, [one, other]: readonly [number, number]) {
  const row = rows.find((each) => each.includes(one));
  if (!row?.includes(other)) return null;
  return { isNext: Math.abs(row.indexOf(one) - row.indexOf(other)) === 1 };
}

/** From side to side where nothing is between; else over what is. */
function acrossRow(scene: Scene, source: Item, sink: Item, isNext: boolean): number[] {
  const [from, to] = [placedAs(scene, source)!, placedAs(scene, sink)!];
  const gap = SIZES.between / 2 - 2;
  const [a, b] = [from.x + from.width / 2, to.x + to.width / 2];
  const [c, d] = [from.y + from.height / 2, to.y + to.height / 2];
  if (scene.direction === "down") {
    if (!isNext) return [a, from.y, a, from.y - gap, b, from.y - gap, b, to.y];
    return a < b ? [from.x + from.width, c, to.x, d] : [from.x, c, to.x + to.width, d];
  }
  if (!isNext) return [from.x, c, from.x - gap, c, from.x - gap, d, to.x, d];
  return c < d ? [a, from.y + from.height, b, to.y] : [a, from.y, b, to.y + to.height];
}

/** The points of a line as seen from a box, and how far they reach. */
function seenFrom({ x, y }: Placed, absolute: readonly number[]) {
  const points = absolute.map((at, i) => at - (i % 2 === 0 ? x : y));
  const [across, along] = [0, 1].map((from) => points.filter((_, i) => i % 2 === from));
  return {
    points,
    left: Math.min(...across!),
    top: Math.min(...along!),
    right: Math.max(...across!),
    bottom: Math.max(...along!),
  };
}

/** From something deep in an open box, down along its side: else through all that stands below it there. */
function leaving(from: Placed, box: Placed): number[] {
  const [start, end] = [from.y + from.height, box.y + box.height];
  if (end - start < DEEP) return [];
  const x = sideOf(from, box);
  return [x, start + SIZES.between, x, end];
}

function reaching(to: Placed, box: Placed): number[] {
  if (to.y - box.y < DEEP) return [];
  const x = sideOf(to, box);
  return [x, box.y, x, to.y - SIZES.between];
}

function sideOf(item: Placed, box: Placed): number {
  const isLeft = item.x + item.width / 2 < box.x + box.width / 2;
  return isLeft ? box.x + SIZES.pad / 2 : box.x + box.width - SIZES.pad / 2;
}

/** For a name and a number on the first line, a class and a shape on the second. */
function neededWidth({ label, about, count }: Box): number {
  const name = label.length + (count > 1 ? 2 + String(count).length : 0);
  const wanted = 30 + Math.max((name + 9) * 7.3, (about.length + 14) * 6.7);
  return 4 * Math.ceil(wanted / 4);
}
