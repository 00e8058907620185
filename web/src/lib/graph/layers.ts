/** A layered drawing of what is in one box: who stands in which row, in which order, and by which way
 * each edge goes. Sizes play no part, so a box that opens changes none of it. */

export interface Diagram {
  /** How many things stand in it; higher numbers are bends of long edges. */
  count: number;
  /** The edges between them, without doubles. */
  edges: readonly (readonly [source: number, sink: number])[];
  /** Where something has to stand: before all else, after all else, or anywhere. */
  ports: readonly ("in" | "out" | "inner")[];
  /** Where on each end an edge is tied, from -0.5 to 0.5: what is tied more to the left stands there. */
  leans: readonly (readonly [source: number, sink: number])[];
}

export interface Layering {
  rows: number[][];
  /** Between neighbouring rows only. */
  segments: [upper: number, lower: number][];
  /** Of each segment, the edge that it is a part of. */
  edgeOfSegment: number[];
  /** The bends of each edge from its upper end to its lower end. */
  bends: number[][];
  /** Edges that lead upwards, as they close a circle. */
  isBack: boolean[];
  size: number;
}

const SWEEPS = 6;

export function layer(diagram: Diagram): Layering {
  const isBack = upwards(diagram);
  const rowOf = rowsOf(diagram, isBack);
  const bent = bend(diagram, isBack, rowOf);
  return { ...bent, rows: order(bent, diagram), isBack };
}

/** In each circle, edges against the numbers' order lead upwards. */
function upwards({ count, edges, ports }: Diagram): boolean[] {
  const sinks: number[][] = Array.from({ length: count }, () => []);
  for (const [source, sink] of edges) sinks[source]!.push(sink);
  const reaches = (from: number, to: number): boolean => {
    const seen = new Set([from]);
    const todo = [from];
    while (todo.length > 0) {
      for (const next of sinks[todo.pop()!]!) {
        if (next === to) return true;
        if (!seen.has(next)) {
          seen.add(next);
          todo.push(next);
        }
      }
    }
    return false;
  };
  return edges.map(([source, sink]) => {
    if (ports[source] === "out" || ports[sink] === "in") return true;
    return source > sink && reaches(sink, source);
  });
}

function rowsOf({ count, edges, ports }: Diagram, isBack: readonly boolean[]): number[] {
  const sinks: number[][] = Array.from({ length: count }, () => []);
  const sources: number[][] = Array.from({ length: count }, () => []);
  for (const [i, [source, sink]] of edges.entries()) {
    if (isBack[i]) continue;
    sinks[source]!.push(sink);
    sources[sink]!.push(source);
  }
  const hasInputs = ports.includes("in");
  const row = longestPaths(sinks, sources, (index) => Number(hasInputs && ports[index] !== "in"));
  // What nothing is needed for (a parameter, a target) stands right above what needs it.
  for (let i = 0; i < count; i++) {
    if (sources[i]!.length > 0 || sinks[i]!.length === 0 || ports[i] === "in") continue;
    row[i] = Math.max(row[i]!, Math.min(...sinks[i]!.map((sink) => row[sink]!)) - 1);
  }
  const last = Math.max(0, ...row.filter((_, i) => ports[i] !== "out"));
  const isInnerEnd = row.some((at, i) => at === last && ports[i] !== "out");
  for (let i = 0; i < count; i++) {
    if (ports[i] === "out") row[i] = Math.max(isInnerEnd ? last + 1 : last, ...row);
  }
  return row;
}

function longestPaths(
  sinks: readonly number[][],
  sources: readonly number[][],
  first: (index: number) => number,
): number[] {
  const row = sinks.map((_, i) => first(i));
  const waits = sources.map((list) => list.length);
  const todo = row.map((_, i) => i).filter((i) => waits[i] === 0);
  for (let at = 0; at < todo.length; at++) {
    for (const sink of sinks[todo[at]!]!) {
      row[sink] = Math.max(row[sink]!, row[todo[at]!]! + 1);
      waits[sink]!--;
      if (waits[sink] === 0) todo.push(sink);
    }
  }
  return row;
}

function bend({ count, edges }: Diagram, isBack: readonly boolean[], rowOf: readonly number[]) {
  const used = [...new Set(rowOf)].sort((a, b) => a - b);
  const place = new Map(used.map((row, index) => [row, index]));
  const rows: number[][] = used.map(() => []);
  for (let i = 0; i < count; i++) rows[place.get(rowOf[i]!)!]!.push(i);
  const segments: [number, number][] = [];
  const edgeOfSegment: number[] = [];
  const bends: number[][] = [];
  let size = count;
  for (const [i, [source, sink]] of edges.entries()) {
    const points: number[] = [];
    bends.push(points);
    const upper = place.get(rowOf[source]!)!;
    const lower = place.get(rowOf[sink]!)!;
    // An edge that leads upwards goes around the side, and asks for no room between the rows.
    if (isBack[i] || upper >= lower) continue;
    let before = source;
    for (let row = upper + 1; row < lower; row++) {
      rows[row]!.push(size);
      points.push(size);
      segments.push([before, size]);
      edgeOfSegment.push(i);
      before = size++;
    }
    segments.push([before, sink]);
    edgeOfSegment.push(i);
  }
  return { rows, segments, edgeOfSegment, bends, size };
}

interface Tie {
  other: number;
  /** Added to the other's place. */
  lean: number;
}

type Bent = Pick<Layering, "rows" | "segments" | "edgeOfSegment" | "size">;

/** Orders each row so that few edges cross: by the middle of what each is tied to, up and down. */
function order(
  { rows, segments, edgeOfSegment, size }: Bent,
  { leans, count }: Diagram,
): number[][] {
  const above: Tie[][] = Array.from({ length: size }, () => []);
  const below: Tie[][] = Array.from({ length: size }, () => []);
  for (const [i, [upper, lower]] of segments.entries()) {
    const [source, sink] = leans[edgeOfSegment[i]!] ?? [0, 0];
    below[upper]!.push({ other: lower, lean: lower < count ? sink : 0 });
    above[lower]!.push({ other: upper, lean: upper < count ? source : 0 });
  }
  // From the order in which things were seen, and from its mirror image if that leaves lines crossed.
  const first = sweep(rows, above, below, size);
  if (first.crossed === 0) return first.rows;
  const mirrored = rows.map((row) => row.slice().reverse());
  const second = sweep(mirrored, above, below, size);
  return second.crossed < first.crossed ? second.rows : first.rows;
}

function sweep(rows: number[][], above: Tie[][], below: Tie[][], size: number) {
  const place = new Float64Array(size);
  const number = (row: readonly number[]) => {
    for (const [i, index] of row.entries()) place[index] = i - (row.length - 1) / 2;
  };
  let best = { rows, crossed: Number.POSITIVE_INFINITY };
  const current = rows.map((row) => row.slice());
  for (const row of current) number(row);
  for (let time = 0; time <= SWEEPS; time++) {
    const crossed = crossings(current, below, place);
    if (crossed < best.crossed) best = { rows: current.map((row) => row.slice()), crossed };
    if (crossed === 0) break;
    const isDown = time % 2 === 0;
    for (const row of isDown ? current : current.slice().reverse()) {
      sortByMiddle(row, isDown ? above : below, place);
      number(row);
    }
  }
  return best;
}

function sortByMiddle(row: number[], tied: readonly Tie[][], place: Float64Array): void {
  const middle = new Map<number, number>();
  for (const index of row) {
    const ties = tied[index]!;
    const sum = ties.reduce((total, { other, lean }) => total + place[other]! + lean, 0);
    middle.set(index, ties.length > 0 ? sum / ties.length : place[index]!);
  }
  row.sort((a, b) => middle.get(a)! - middle.get(b)! || place[a]! - place[b]!);
}

function crossings(
  rows: readonly number[][],
  below: readonly Tie[][],
  place: Float64Array,
): number {
  let crossed = 0;
  for (const row of rows) {
    const ends: number[] = [];
    for (const index of row) {
      const sorted = below[index]!.map(({ other, lean }) => place[other]! + lean);
      sorted.sort((a, b) => a - b);
      for (const end of sorted) {
        // Few edges meet between two rows of one box: counting them pair by pair is quick enough.
        for (const other of ends) if (other > end) crossed++;
      }
      ends.push(...sorted);
    }
  }
  return crossed;
}
