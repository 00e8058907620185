import { type Adjacency, adjacency } from "./edges";
import { type Layering, layer } from "./layers";
import type { Graph } from "./model";

/** A number for whatever is drawn: a box by its place, a tensor after all boxes. */
export type Item = number;

export const vertexItem = (graph: Graph, vertex: number): Item => graph.boxes.length + vertex;
export const isVertexItem = (graph: Graph, item: Item): boolean => item >= graph.boxes.length;

/** What stands in one box, and how. It is the same whatever is open. */
export interface Arrangement {
  items: Item[];
  layering: Layering;
  /** The pairs of places in `items` that are tied, as in the layering. */
  pairs: (readonly [number, number])[];
  /** Of each edge of the graph that is drawn in this box, its pair. */
  pairOfEdge: Map<number, number>;
}

/** Which box each edge of the graph is drawn in: the innermost that holds both its ends. */
export class Nesting {
  private readonly arrangements = new Map<number, Arrangement>();
  private readonly around: Int32Array;
  private readonly upper: Int32Array;
  private readonly lower: Int32Array;
  private readonly ofBox: Adjacency;

  constructor(readonly graph: Graph) {
    const { source, sink } = graph.edges;
    this.around = new Int32Array(source.length);
    this.upper = new Int32Array(source.length);
    this.lower = new Int32Array(source.length);
    for (let i = 0; i < source.length; i++) this.meet(i, source[i]!, sink[i]!);
    this.ofBox = adjacency(this.around, graph.boxes.length);
  }

  edgesIn(box: number): Int32Array {
    return this.ofBox.edge.subarray(this.ofBox.start[box]!, this.ofBox.start[box + 1]!);
  }

  arrangement(box: number): Arrangement {
    let found = this.arrangements.get(box);
    if (!found) {
      found = this.arrange(box);
      this.arrangements.set(box, found);
    }
    return found;
  }

  private meet(edge: number, source: number, sink: number): void {
    const { boxes, vertices } = this.graph;
    let a = vertices[source]!.box;
    let b = vertices[sink]!.box;
    let upper = vertexItem(this.graph, source);
    let lower = vertexItem(this.graph, sink);
    while (boxes[a]!.depth > boxes[b]!.depth) {
      upper = a;
      a = boxes[a]!.parent;
    }
    while (boxes[b]!.depth > boxes[a]!.depth) {
      lower = b;
      b = boxes[b]!.parent;
    }
    while (a !== b) {
      upper = a;
      lower = b;
      a = boxes[a]!.parent;
      b = boxes[b]!.parent;
    }
    this.around[edge] = a;
    this.upper[edge] = upper;
    this.lower[edge] = lower;
  }

  private arrange(index: number): Arrangement {
    const { boxes, vertices, edges } = this.graph;
    const box = boxes[index]!;
    const order = (item: Item) =>
      isVertexItem(this.graph, item) ? item - boxes.length : boxes[item]!.order;
    const own = box.vertices.map((vertex) => vertexItem(this.graph, vertex));
    const items = [...own, ...box.children].sort((a, b) => order(a) - order(b) || a - b);
    const places = new Map(items.map((item, place) => [item, place]));
    const known = new Map<number, number>();
    const pairs: (readonly [number, number])[] = [];
    const pairOfEdge = new Map<number, number>();
    const add = (edge: number) => {
      const source = places.get(this.upper[edge]!);
      const sink = places.get(this.lower[edge]!);
      if (source === undefined || sink === undefined || source === sink) return;
      const key = source * items.length + sink;
      if (!known.has(key)) {
        known.set(key, pairs.length);
        pairs.push([source, sink]);
      }
      pairOfEdge.set(edge, known.get(key)!);
    };
    for (const edge of this.edgesIn(index)) if (!edges.isBack[edge]) add(edge);
    for (const edge of this.edgesIn(index)) if (edges.isBack[edge]) add(edge);
    const ports = items.map((item) =>
      isVertexItem(this.graph, item) ? vertices[item - boxes.length]!.port : "inner",
    );
    const leans = this.leans(pairs, pairOfEdge, items);
    const layering = layer({ count: items.length, edges: pairs, ports, leans });
    return { items, layering, pairs, pairOfEdge };
  }

  /** Of each pair, where among the inputs and outputs of both ends it is tied. */
  private leans(
    pairs: readonly (readonly [number, number])[],
    pairOfEdge: ReadonlyMap<number, number>,
    items: readonly Item[],
  ): (readonly [number, number])[] {
    const { source, sink } = this.graph.edges;
    const sums = pairs.map(() => [0, 0, 0] as [number, number, number]);
    for (const [edge, pair] of pairOfEdge) {
      const sum = sums[pair]!;
      sum[0] += this.leanOf(items[pairs[pair]![0]]!, source[edge]!);
      sum[1] += this.leanOf(items[pairs[pair]![1]]!, sink[edge]!);
      sum[2]++;
    }
    return sums.map(([a, b, count]) => [a / Math.max(1, count), b / Math.max(1, count)]);
  }

  private leanOf(item: Item, vertex: number): number {
    const { boxes, vertices } = this.graph;
    if (vertices[vertex]!.box !== item) return 0;
    const { port } = vertices[vertex]!;
    const ports = boxes[item]!.vertices.filter((index) => vertices[index]!.port === port);
    return (ports.indexOf(vertex) + 0.5) / ports.length - 0.5;
  }
}
