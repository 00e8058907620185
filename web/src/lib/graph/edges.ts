import type { GraphAnswer } from "./answer";

/** Edges as columns, with those of each vertex found by its place in `first…`. */
export interface Edges {
  source: Int32Array;
  sink: Int32Array;
  /** 1 where an edge leads back to an earlier place: into the next iteration. */
  isBack: Uint8Array;
  /** How an edge is known: the place of its kind in `KINDS`. */
  kind: Uint8Array;
  out: Adjacency;
  in: Adjacency;
}

export interface Adjacency {
  start: Int32Array;
  edge: Int32Array;
}

export const KINDS = ["autograd", "manual", "data"] as const;

export function readEdges(
  answer: GraphAnswer,
  vertexOfSite: ReadonlyMap<number, number>,
  count: number,
): Edges {
  const source: number[] = [];
  const sink: number[] = [];
  const kind: number[] = [];
  for (const [place, name] of KINDS.entries()) {
    for (const [from, to] of answer.edges[name] ?? []) {
      const a = vertexOfSite.get(from);
      const b = vertexOfSite.get(to);
      if (a === undefined || b === undefined || a === b) continue;
      source.push(a);
      sink.push(b);
      kind.push(place);
    }
  }
  const columns = { source: Int32Array.from(source), sink: Int32Array.from(sink) };
  const out = adjacency(columns.source, count);
  return {
    ...columns,
    kind: Uint8Array.from(kind),
    isBack: backEdges(columns.source, columns.sink, out, count),
    out,
    in: adjacency(columns.sink, count),
  };
}

export function adjacency(ends: Int32Array, count: number): Adjacency {
  const start = new Int32Array(count + 1);
  for (const end of ends) start[end + 1]!++;
  for (let i = 0; i < count; i++) start[i + 1]! += start[i]!;
  const edge = new Int32Array(ends.length);
  const next = start.slice();
  for (let i = 0; i < ends.length; i++) edge[next[ends[i]!]!++] = i;
  return { start, edge };
}

/** Of each circle, the edges that lead to what was seen earlier. */
export function backEdges(
  source: Int32Array,
  sink: Int32Array,
  out: Adjacency,
  count: number,
): Uint8Array {
  const component = components(sink, out, count);
  return Uint8Array.from(source, (from, i) =>
    Number(component[from] === component[sink[i]!] && from >= sink[i]!),
  );
}

/** The strongly connected component of each vertex (Tarjan, without recursion). */
function components(sink: Int32Array, out: Adjacency, count: number): Int32Array {
  const component = new Int32Array(count).fill(-1);
  const seen = new Int32Array(count).fill(-1);
  const low = new Int32Array(count);
  const next = out.start.slice(0, count);
  const path: number[] = [];
  const stack: number[] = [];
  let time = 0;
  for (let root = 0; root < count; root++) {
    if (seen[root]! >= 0) continue;
    path.push(root);
    while (path.length > 0) {
      const at = path.at(-1)!;
      if (seen[at]! < 0) {
        seen[at] = low[at] = time++;
        stack.push(at);
      }
      if (next[at]! < out.start[at + 1]!) {
        const to = sink[out.edge[next[at]!++]!]!;
        if (seen[to]! < 0) path.push(to);
        else if (component[to]! < 0) low[at] = Math.min(low[at]!, seen[to]!);
        continue;
      }
      path.pop();
      const above = path.at(-1);
      if (above !== undefined) low[above] = Math.min(low[above]!, low[at]!);
      if (low[at] === seen[at]) closeComponent(stack, at, component);
    }
  }
  return component;
}

function closeComponent(stack: number[], at: number, component: Int32Array): void {
  for (;;) {
    const member = stack.pop()!;
    component[member] = at;
    if (member === at) return;
  }
}
