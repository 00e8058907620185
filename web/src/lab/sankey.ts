import type { Pair, Picture } from "./picture";

export type ThresholdKind = "top" | "share" | "value";
export interface Threshold {
  kind: ThresholdKind;
  /** A number of links, a percentage of all flow between two layers, or a value. */
  amount: number;
}

/** A band between a node and one of the next layer, or around that layer. */
export interface Link {
  pair: number;
  from: number;
  /** A node of the next layer; -1 goes around it. */
  to: number;
  value: number;
  x0: number;
  x1: number;
  /** The upper edge at either end, and the width there. */
  y0: number;
  y1: number;
  width0: number;
  width1: number;
}

export interface Node {
  column: number;
  node: number;
  label: string;
  x: number;
  y: number;
  height: number;
  into: number;
  outOf: number;
}

export interface Layout {
  nodes: Node[];
  links: Link[];
  columns: { name: string; x: number }[];
  /** How many links the threshold leaves out. */
  hidden: number;
}

export const NODE_WIDTH = 7;

interface Flow {
  from: number;
  to: number;
  value: number;
}

/** The links of a pair that are large enough; positive and negative ones are links of their own. */
export function chosenFlows(pair: Pair, threshold: Threshold): { shown: Flow[]; hidden: number } {
  const all: Flow[] = [];
  const put = (from: number, to: number, value: number) => {
    if (value !== 0 && Number.isFinite(value)) all.push({ from, to, value });
  };
  for (let n = 0; n < pair.from.length; n++) {
    put(pair.from[n]!, pair.to[n]!, pair.positive[n]!);
    put(pair.from[n]!, pair.to[n]!, pair.negative[n]!);
  }
  for (let n = 0; n < pair.aroundPositive.length; n++) {
    put(n, -1, pair.aroundPositive[n]!);
    put(n, -1, pair.aroundNegative[n]!);
  }
  all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const count = countAbove(all, threshold);
  return { shown: all.slice(0, count), hidden: all.length - count };
}

/** How many of the flows, largest first, a threshold leaves. */
function countAbove(flows: Flow[], { kind, amount }: Threshold): number {
  if (kind === "top") return Math.min(flows.length, Math.max(0, Math.round(amount)));
  const total = flows.reduce((sum, { value }) => sum + Math.abs(value), 0);
  const least = kind === "value" ? amount : (amount / 100) * total;
  const first = flows.findIndex(({ value }) => Math.abs(value) < least);
  return first < 0 ? flows.length : first;
}

/** Places nodes in columns and bands between them. Each column fills the height on its own scale:
 * gradients of neighbouring layers may differ by orders of magnitude. */
export function layOut(
  picture: Picture,
  threshold: Threshold,
  width: number,
  height: number,
): Layout {
  const names = picture.layers.map(({ name }) => name);
  const columnWidth = width / Math.max(1, names.length);
  const xs = names.map((_, n) => (n + 0.5) * columnWidth - NODE_WIDTH / 2);
  const chosen = picture.pairs.map((pair) => chosenFlows(pair, threshold));
  const sums = names.map((_, n) => {
    const size = picture.layers[n]!.labels.length + 1;
    return { into: new Float64Array(size), outOf: new Float64Array(size) };
  });
  const columnOf = new Map(names.map((name, n) => [name, n]));
  const ends = picture.pairs.map(
    ({ source, sink }) => [columnOf.get(source)!, columnOf.get(sink)!] as const,
  );
  chosen.forEach(({ shown }, n) => {
    const [source, sink] = ends[n]!;
    for (const { from, to, value } of shown) {
      sums[source]!.outOf[from]! += Math.abs(value);
      sums[sink]!.into[placeOf(to, sums[sink]!)]! += Math.abs(value);
    }
  });
  const columns = sums.map((sum) => placeColumn(sum, height));
  const links = chosen.flatMap(({ shown }, n) => {
    const [source, sink] = ends[n]!;
    const span = { x0: xs[source]! + NODE_WIDTH, x1: xs[sink]! };
    return bands(shown, n, span, columns[source]!, columns[sink]!);
  });
  const nodes = columns.flatMap((column, n) =>
    Array.from(column.y, (y, node) => ({
      column: n,
      node: node === column.y.length - 1 ? -1 : node,
      label: picture.layers[n]!.labels[node] ?? `around ${names[n]}`,
      x: xs[n]!,
      y,
      height: column.height[node]!,
      into: sums[n]!.into[node]!,
      outOf: sums[n]!.outOf[node]!,
    })).filter(({ into, outOf }) => into > 0 || outOf > 0),
  );
  return {
    nodes,
    links,
    columns: names.map((name, n) => ({ name, x: xs[n]! + NODE_WIDTH / 2 })),
    hidden: chosen.reduce((sum, { hidden }) => sum + hidden, 0),
  };
}

function placeOf(to: number, { into }: { into: Float64Array }): number {
  return to < 0 ? into.length - 1 : to;
}

interface Column {
  y: Float64Array;
  height: Float64Array;
  scale: number;
}

function placeColumn(
  { into, outOf }: { into: Float64Array; outOf: Float64Array },
  height: number,
): Column {
  const sizes = into.map((value, n) => Math.max(value, outOf[n]!));
  const used = sizes.reduce((count, size) => count + (size > 0 ? 1 : 0), 0);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const gap = used > 1 ? Math.min(8, (0.3 * height) / (used - 1)) : 0;
  const scale = total > 0 ? (height - gap * (used - 1)) / total : 0;
  const y = new Float64Array(sizes.length);
  let at = 0;
  sizes.forEach((size, n) => {
    y[n] = at;
    if (size > 0) at += size * scale + gap;
  });
  return { y, height: sizes.map((size) => size * scale), scale };
}

/** Bands leave a node in the order of where they go, and enter it in that of where they come from. */
function bands(
  flows: Flow[],
  pair: number,
  { x0, x1 }: { x0: number; x1: number },
  source: Column,
  sink: Column,
): Link[] {
  const last = sink.y.length - 1;
  const goal = (flow: Flow) => (flow.to < 0 ? last : flow.to);
  const y0 = new Map<Flow, number>();
  const left = Float64Array.from(source.y);
  for (const flow of [...flows].sort((a, b) => a.from - b.from || goal(a) - goal(b))) {
    y0.set(flow, left[flow.from]!);
    left[flow.from]! += Math.abs(flow.value) * source.scale;
  }
  const right = Float64Array.from(sink.y);
  return [...flows]
    .sort((a, b) => goal(a) - goal(b) || a.from - b.from)
    .map((flow) => {
      const size = Math.abs(flow.value);
      const y1 = right[goal(flow)]!;
      right[goal(flow)] = y1 + size * sink.scale;
      const width = { width0: size * source.scale, width1: size * sink.scale };
      return { ...flow, pair, x0, x1, y0: y0.get(flow)!, y1, ...width };
    });
}

/** The upper and the lower edge of a band at a place between its ends; null outside. */
export function edgesAt(link: Link, x: number): [number, number] | null {
  const share = (x - link.x0) / (link.x1 - link.x0);
  if (!(share >= 0 && share <= 1)) return null;
  let low = 0;
  let high = 1;
  for (let n = 0; n < 24; n++) {
    const t = (low + high) / 2;
    if (1.5 * t * (1 - t) ** 2 + 1.5 * t * t * (1 - t) + t ** 3 < share) low = t;
    else high = t;
  }
  const ease = low * low * (3 - 2 * low);
  const top = link.y0 + (link.y1 - link.y0) * ease;
  return [top, top + link.width0 + (link.width1 - link.width0) * ease];
}

/** The nodes and links that lead to a node and that it leads to, as `column/node` and places. */
export function litBy(
  layout: Layout,
  pairs: readonly { source: string; sink: string }[],
  column: number,
  node: number,
): { nodes: Set<string>; links: Set<number> } {
  const place = new Map(layout.columns.map(({ name }, n) => [name, n]));
  const nodes = new Set([`${column}/${node}`]);
  const links = new Set<number>();
  const spread = (forwards: boolean) => {
    let front = new Set([`${column}/${node}`]);
    while (front.size > 0) {
      const next = new Set<string>();
      layout.links.forEach((link, n) => {
        const pair = pairs[link.pair]!;
        const start = `${place.get(pair.source)}/${link.from}`;
        const end = `${place.get(pair.sink)}/${link.to}`;
        const [near, far] = forwards ? [start, end] : [end, start];
        if (!front.has(near) || links.has(n)) return;
        links.add(n);
        next.add(far);
        nodes.add(far);
      });
      front = next;
    }
  };
  spread(true);
  spread(false);
  return { nodes, links };
}
