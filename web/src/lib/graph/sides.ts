import type { Graph } from "./model";
import { type Item, isVertexItem } from "./nesting";
import type { Link } from "./scene";
import { type Owner, pairKey, type Union } from "./union";

/** Which of two runs has something; a box that both have may hold what is only in one of them. */
export type Side = Owner | "mixed";

export interface Sides {
  ofItem: (item: Item) => Side;
  ofLink: (link: Pick<Link, "edges">) => Owner;
  /** What is different, in few signs: `−` only in one, `+` only in the other, `≠` another module. */
  signOf: (item: Item) => string;
  /** How many tensors and edges are whose. */
  tensors: Record<Owner, number>;
  edges: Record<Owner, number>;
  /** The closed boxes in which, and the boxes of one run alone at which, one sees what differs. */
  differing: () => number[];
}

const OWNERS = ["both", "one", "other"] as const satisfies readonly Owner[];
const BOTH = 0;

/** How many things of each owner are in each box, and how many that are no tensors differ there. */
interface Held extends Record<Owner, Int32Array> {
  edges: Int32Array;
  changed: Int32Array;
}

export function sidesOf(graph: Graph, union: Union): Sides {
  const { source, sink } = graph.edges;
  const siteOf = (vertex: number) => graph.vertices[vertex]!.site;
  // Numbers rather than names: there are tens of thousands.
  const ofVertex = Uint8Array.from(graph.vertices, ({ site }) =>
    codeOf(union.ownerOfSite.get(site)),
  );
  const ofEdge = Uint8Array.from(source, (from, i) =>
    codeOf(union.ownerOfPair.get(pairKey(siteOf(from), siteOf(sink[i]!)))),
  );
  const held = heldBy(graph, union, ofVertex, ofEdge);
  const ofItem = (item: Item): Side =>
    isVertexItem(graph, item)
      ? OWNERS[ofVertex[item - graph.boxes.length]!]!
      : sideOfBox(held, item);
  return {
    ofItem,
    ofLink: ({ edges }) => OWNERS[sideOfEdges(edges, ofEdge)]!,
    signOf: (item) => (isVertexItem(graph, item) ? SIGNS[ofItem(item)] : signOfBox(held, item)),
    tensors: countOf(ofVertex),
    edges: countOf(ofEdge),
    differing: () => differingBoxes(graph, held),
  };
}

export const SIGNS: Record<Side, string> = { both: "", one: "−", other: "+", mixed: "±" };

function codeOf(owner: Owner | undefined): number {
  return owner === undefined ? BOTH : OWNERS.indexOf(owner);
}

function heldBy(graph: Graph, { changed }: Union, ofVertex: Uint8Array, ofEdge: Uint8Array): Held {
  const { boxes, vertices } = graph;
  const counts = () => new Int32Array(boxes.length);
  const owned = [counts(), counts(), counts()] as const;
  const held = { edges: counts(), changed: counts() };
  for (const { index, box } of vertices) owned[ofVertex[index] as 0 | 1 | 2][box]!++;
  for (let edge = 0; edge < ofEdge.length; edge++)
    if (ofEdge[edge] !== BOTH) held.edges[boxAround(graph, edge)]!++;
  for (const { index, kind, name } of boxes)
    if (kind === "module" && changed.has(name)) held.changed[index]!++;
  const innermostFirst = boxes.toSorted((a, b) => b.depth - a.depth);
  for (const each of [...owned, held.edges, held.changed])
    for (const { index, parent } of innermostFirst) if (parent >= 0) each[parent]! += each[index]!;
  const [both, one, other] = owned;
  return { both, one, other, ...held };
}

/** The innermost box that holds both ends of an edge. */
function boxAround({ boxes, vertices, edges }: Graph, edge: number): number {
  let a = vertices[edges.source[edge]!]!.box;
  let b = vertices[edges.sink[edge]!]!.box;
  while (a !== b) {
    if (boxes[a]!.depth >= boxes[b]!.depth) a = boxes[a]!.parent;
    else b = boxes[b]!.parent;
  }
  return a;
}

function sideOfBox(held: Held, box: number): Side {
  const { both, one, other, edges, changed } = held;
  if (both[box]! + other[box]! === 0 && one[box]! > 0) return "one";
  if (both[box]! + one[box]! === 0 && other[box]! > 0) return "other";
  return one[box]! + other[box]! + edges[box]! + changed[box]! > 0 ? "mixed" : "both";
}

function signOfBox(held: Held, box: number): string {
  const side = sideOfBox(held, box);
  if (side !== "mixed") return SIGNS[side];
  const [one, other] = [held.one[box]!, held.other[box]!];
  const counted = [one && `−${one}`, other && `+${other}`].filter(Boolean);
  return (held.changed[box]! > 0 || counted.length === 0 ? ["≠", ...counted] : counted).join(" ");
}

/** The outermost boxes of one run, and the innermost that hold another difference. */
function differingBoxes({ boxes }: Graph, held: Held): number[] {
  const side = boxes.map(({ index }) => sideOfBox(held, index));
  return boxes.flatMap(({ index, parent, children }) => {
    if (index === 0 || side[parent] === "one" || side[parent] === "other") return [];
    if (side[index] === "one" || side[index] === "other") return [index];
    return side[index] === "mixed" && children.every((child) => side[child] === "both")
      ? [index]
      : [];
  });
}

/** A line that stands for several edges is of one run if all of them are. */
function sideOfEdges(edges: readonly number[], ofEdge: Uint8Array): number {
  const first = ofEdge[edges[0] ?? -1] ?? BOTH;
  // Asked of every line at every frame: most are of both, which their first edge tells.
  return first !== BOTH && edges.every((edge) => ofEdge[edge] === first) ? first : BOTH;
}

function countOf(owners: Uint8Array): Record<Owner, number> {
  const counts = [0, 0, 0];
  for (const owner of owners) counts[owner]!++;
  return { both: counts[0]!, one: counts[1]!, other: counts[2]! };
}
