import type { Graph } from "./model";
import type { Moment, Picked } from "./moment";
import { type Item, isVertexItem } from "./nesting";

/** The number that something shows, and of which tensor it is. */
export interface ItemValue {
  vertex: number;
  /** NaN where there is no finite one. */
  value: number;
  hasNan: boolean;
  hasInf: boolean;
  /** Of how many tensors it is the greatest. */
  of: number;
}

/** The number that each item shows while it is closed. */
export interface ItemValues {
  get(item: Item): ItemValue | undefined;
}

interface Source {
  graph: Graph;
  moment: Moment;
  picked: Picked;
  /** Only parameters have this quantity, so a box shows the greatest of those in it. */
  isOfParameters: boolean;
}

/** The numbers while nothing is selected, each worked out when it is first asked for: whatever opens, closes or
 * is selected changes none of them. */
export function itemValues(source: Source): ItemValues {
  const known = new Map<Item, ItemValue | undefined>();
  return {
    get(item) {
      if (!known.has(item)) known.set(item, numberOf(item, source, null) ?? undefined);
      return known.get(item);
    },
  };
}

/** The same numbers, but that the box of the selected tensor shows that tensor's own. */
export function withSelected(
  values: ItemValues,
  source: Source,
  selected: number | null,
): ItemValues {
  if (selected === null) return values;
  const { box } = source.graph.vertices[selected]!;
  const own = numberOf(box, source, selected) ?? undefined;
  return { get: (item) => (item === box ? own : values.get(item)) };
}

function numberOf(item: Item, source: Source, selected: number | null): ItemValue | null {
  const { graph } = source;
  if (isVertexItem(graph, item)) return readValue(item - graph.boxes.length, source);
  const chosen = chosenRole(graph, item, selected);
  const main = mainVertex(graph, item);
  // An output that was chosen before speaks for its module still: for the parameters in it.
  const speaks = source.isOfParameters && chosen === main && graph.boxes[item]!.kind === "module";
  if (chosen !== null && !speaks) return readValue(chosen, source);
  const own = source.isOfParameters ? null : main;
  const value = own === null ? null : readValue(own, source);
  // What it has at other iterations is not made up for by what its parameters have at none.
  const isElsewhere = own !== null && source.picked.isAnywhere[graph.vertices[own]!.site] === 1;
  return value ?? (isElsewhere ? null : greatest(item, source));
}

/** The selected tensor, if it is one of a box's own: one in a box inside is none of its roles. */
export function chosenRole(graph: Graph, box: number, selected: number | null): number | null {
  return selected !== null && graph.vertices[selected]!.box === box ? selected : null;
}

/** The tensor that a box tells of: the one whose number it shows, else the chosen one. */
export function shownVertex(
  graph: Graph,
  box: number,
  selected: number | null,
  values: ItemValues,
): number | null {
  return values.get(box)?.vertex ?? chosenRole(graph, box, selected) ?? mainVertex(graph, box);
}

/** The tensor that speaks for a box: its first output, or that of the last box in it. */
export function mainVertex(graph: Graph, box: number): number | null {
  const { vertices, children, kind } = graph.boxes[box]!;
  const out = vertices.find((vertex) => graph.vertices[vertex]!.port === "out");
  if (out !== undefined) return out;
  const inner = vertices.find((vertex) => graph.vertices[vertex]!.port === "inner");
  if (kind === "tensor") return inner ?? null;
  for (const child of children.slice().reverse()) {
    const found = mainVertex(graph, child);
    if (found !== null) return found;
  }
  return inner ?? vertices.at(-1) ?? null;
}

function readValue(vertex: number, { graph, moment, picked }: Source): ItemValue | null {
  const row = picked.row[graph.vertices[vertex]!.site] ?? -1;
  if (row < 0) return null;
  const value = moment.value[row] ?? Number.NaN;
  const isNumber = Number.isFinite(value);
  const hasNan = moment.nans[row]! > 0;
  const hasInf = moment.infs[row]! > 0 || (!isNumber && !Number.isNaN(value));
  if (!isNumber && !hasNan && !hasInf) return null;
  return { vertex, value: isNumber ? value : Number.NaN, hasNan, hasInf, of: 1 };
}

function greatest(box: number, source: Source): ItemValue | null {
  let best: ItemValue | null = null;
  let of = 0;
  const todo = [box];
  while (todo.length > 0) {
    const { vertices, children } = source.graph.boxes[todo.pop()!]!;
    todo.push(...children);
    for (const vertex of vertices) {
      const value = readValue(vertex, source);
      if (!value) continue;
      of++;
      if (!best || isWorse(value, best)) best = value;
    }
  }
  return best && { ...best, of };
}

/** What is broken comes before what is great. */
function isWorse(a: ItemValue, b: ItemValue): boolean {
  if (a.hasNan !== b.hasNan) return a.hasNan;
  if (a.hasInf !== b.hasInf) return a.hasInf;
  return Math.abs(a.value) > Math.abs(b.value) || Number.isNaN(b.value);
}
