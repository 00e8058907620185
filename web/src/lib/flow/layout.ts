import type { FlowNode, FlowPath, GroupedFlow } from "./group";

export interface PlacedNode {
  node: FlowNode;
  row: number;
  x: number;
  y: number;
  width: number;
}

/** A path as bands from row to row: four corners each, with bends between. */
export interface PlacedPath {
  path: FlowPath;
  bands: Band[];
}

export interface Band {
  top: number;
  bottom: number;
  from: [left: number, right: number];
  to: [left: number, right: number];
}

export interface FlowLayout {
  nodes: PlacedNode[];
  paths: PlacedPath[];
  rows: number;
  height: number;
}

export interface FlowRoom {
  /** Where the flow is drawn, in pixels. */
  left: number;
  width: number;
  height: number;
}

export const NODE_HEIGHT = 8;
const LOWEST_ROW = 24;
/** Higher rows show no more, but on a large screen they fill it. */
const HIGHEST_ROW = 56;
const FEWEST_ROWS = 10;
const GAP = 14;
/** Without it, a seam is seen where bands meet. */
const OVERLAP = 0.6;
const THINNEST = 1.5;
const TOP = 10;

interface Item {
  key: string;
  row: number;
  share: number;
  node: FlowNode | null;
  isSkip: boolean;
  x: number;
  width: number;
}

interface Segment {
  source: Item;
  sink: Item;
  share: number;
  path: number;
}

/** Rows from the first tensors down to the loss; widths are shares, and every row adds up to the same. */
export function layoutFlow({ nodes, paths }: GroupedFlow, room: FlowRoom): FlowLayout {
  const rowOf = rank(nodes, paths);
  const rows = Math.max(0, ...rowOf.values()) + 1;
  const highest = Math.max(HIGHEST_ROW, room.height / FEWEST_ROWS);
  const apart = Math.max(LOWEST_ROW, Math.min(highest, (room.height - 2 * TOP) / rows));
  const items = new Map<string, Item>();
  for (const node of nodes) {
    items.set(node.key, {
      key: node.key,
      row: rowOf.get(node.key)!,
      share: node.share,
      node,
      isSkip: false,
      x: 0,
      width: 0,
    });
  }
  const segments = paths.flatMap((path, index) => segmentsOf(path, index, items));
  const byRow: Item[][] = Array.from({ length: rows }, () => []);
  for (const item of items.values()) byRow[item.row]!.push(item);
  const full = Math.max(
    40,
    room.width - GAP * (Math.max(1, ...byRow.map(({ length }) => length)) - 1),
  );
  for (const row of byRow) placeRow(row, segments, full, room);
  const y = (row: number) => TOP + row * apart;
  return {
    nodes: [...items.values()]
      .filter((item) => item.node !== null)
      .map((item) => ({
        node: item.node!,
        row: item.row,
        x: item.x,
        y: y(item.row),
        width: item.width,
      })),
    paths: bandsOf(paths, segments, y, full),
    rows,
    height: TOP * 2 + (rows - 1) * apart + NODE_HEIGHT,
  };
}

/** As far down as what stands above asks for; what nothing leads to stands just above what it leads to. */
function rank(nodes: readonly FlowNode[], paths: readonly FlowPath[]): Map<string, number> {
  const place = new Map(nodes.map(({ key }, i) => [key, i]));
  const forward = paths.filter(({ source, sink }) => place.get(source)! < place.get(sink)!);
  const into = new Map<string, string[]>();
  const outOf = new Map<string, string[]>();
  for (const { source, sink } of forward) {
    into.set(sink, [...(into.get(sink) ?? []), source]);
    outOf.set(source, [...(outOf.get(source) ?? []), sink]);
  }
  const rows = new Map<string, number>();
  for (const { key } of nodes) {
    rows.set(key, Math.max(0, ...(into.get(key) ?? []).map((source) => rows.get(source)! + 1)));
  }
  for (const { key } of nodes) {
    const sinks = outOf.get(key);
    if (!into.has(key) && sinks)
      rows.set(key, Math.min(...sinks.map((sink) => rows.get(sink)!)) - 1);
  }
  return rows;
}

/** A path that passes rows has a place in each, so that it leads around what it skips. */
function segmentsOf(path: FlowPath, index: number, items: Map<string, Item>): Segment[] {
  const source = items.get(path.source)!;
  const sink = items.get(path.sink)!;
  if (sink.row <= source.row) return [];
  const stops = [source];
  for (let row = source.row + 1; row < sink.row; row++) {
    const stop = {
      key: `${index}/${row}`,
      row,
      share: path.share,
      node: null,
      isSkip: path.isSkip,
      x: 0,
      width: 0,
    };
    items.set(stop.key, stop);
    stops.push(stop);
  }
  stops.push(sink);
  return stops
    .slice(1)
    .map((stop, i) => ({ source: stops[i]!, sink: stop, share: path.share, path: index }));
}

function placeRow(row: Item[], segments: readonly Segment[], full: number, room: FlowRoom): void {
  const above = (item: Item) => {
    const found = segments.filter(({ sink }) => sink === item);
    const weight = found.reduce((sum, { share }) => sum + share, 0);
    if (weight === 0) return 0;
    const middle = found.reduce(
      (sum, { source, share }) => sum + (source.x + source.width / 2) * share,
      0,
    );
    return middle / weight;
  };
  const at = new Map(row.map((item) => [item, above(item)]));
  // Skips to the right of what they skip.
  row.sort((a, b) => Number(a.isSkip) - Number(b.isSkip) || at.get(a)! - at.get(b)!);
  for (const item of row) item.width = Math.max(THINNEST, item.share * full);
  const total = row.reduce((sum, { width }) => sum + width, 0) + GAP * (row.length - 1);
  let x = room.left + (room.width - total) / 2;
  for (const item of row) {
    item.x = x;
    x += item.width + GAP;
  }
}

function bandsOf(
  paths: readonly FlowPath[],
  segments: readonly Segment[],
  y: (row: number) => number,
  full: number,
): PlacedPath[] {
  const used = new Map<Item, { out: number; into: number }>();
  const ordered = [...segments].sort((a, b) => a.sink.x - b.sink.x || a.source.x - b.source.x);
  const take = (item: Item, side: "out" | "into", share: number): [number, number] => {
    const held = used.get(item) ?? { out: 0, into: 0 };
    used.set(item, held);
    const from = item.x + held[side];
    const wide = Math.max(THINNEST, share * full);
    held[side] += share * full;
    return [from, from + wide];
  };
  const froms = new Map(
    ordered.map((segment) => [segment, take(segment.source, "out", segment.share)]),
  );
  const arriving = [...segments].sort((a, b) => a.source.x - b.source.x || a.sink.x - b.sink.x);
  const tos = new Map(
    arriving.map((segment) => [segment, take(segment.sink, "into", segment.share)]),
  );
  const placed: PlacedPath[] = paths.map((path) => ({ path, bands: [] }));
  for (const segment of segments) {
    // A stop has no box of its own: its bands meet in its middle.
    const top = y(segment.source.row) + (segment.source.node ? NODE_HEIGHT : NODE_HEIGHT / 2);
    const bottom = y(segment.sink.row) + (segment.sink.node ? 0 : NODE_HEIGHT / 2 + OVERLAP);
    placed[segment.path]!.bands.push({
      top,
      bottom,
      from: froms.get(segment)!,
      to: tos.get(segment)!,
    });
  }
  return placed.filter(({ bands }) => bands.length > 0);
}

export interface ShareLabel {
  key: string;
  x: number;
  y: number;
  text: string;
}

const SHARE_ROOM = { width: 44, height: 13 };

/** The shares of paths that fork or meet others, where a band has room for the number. */
export function shareLabels(
  { paths }: FlowLayout,
  format: (share: number) => string,
  names: readonly FlowLabel[] = [],
  character = 0,
): ShareLabel[] {
  const inside = names.filter(({ isInside }) => isInside);
  const ends = new Map<string, number>();
  const endsOf = ({ source, sink }: FlowPath) => [`out of ${source}`, `into ${sink}`];
  for (const { path } of paths)
    for (const end of endsOf(path)) ends.set(end, (ends.get(end) ?? 0) + 1);
  return paths.flatMap(({ path, bands }) => {
    if (!endsOf(path).some((end) => ends.get(end)! > 1)) return [];
    const band = bands[Math.floor((bands.length - 1) / 2)]!;
    const { top, bottom, from, to } = band;
    const middle = (top + bottom) / 2;
    let [left, right] = [Math.max(from[0], to[0]), Math.min(from[1], to[1])];
    // Beside a name that stands on the same band.
    for (const { x, y, text } of inside)
      if (x >= from[0] && x < right && Math.abs(y - middle) < SHARE_ROOM.height)
        left = Math.max(left, x + (text.length + 1) * character);
    if (right - left < SHARE_ROOM.width || bottom - top < SHARE_ROOM.height) return [];
    const key = `${path.source}/${path.sink}/${path.isSkip}`;
    return [{ key, x: (left + right) / 2, y: middle, text: format(path.share) }];
  });
}

/** A band as the path of an SVG. */
export function bandPath({ top, bottom, from, to }: Band): string {
  const middle = (top + bottom) / 2;
  const n = (value: number) => Math.round(value * 10) / 10;
  return `M${n(from[0])} ${n(top)}C${n(from[0])} ${n(middle)} ${n(to[0])} ${n(middle)} ${n(to[0])} ${n(bottom)}L${n(to[1])} ${n(bottom)}C${n(to[1])} ${n(middle)} ${n(from[1])} ${n(middle)} ${n(from[1])} ${n(top)}Z`;
}

export const LINK_COLOURS = { skip: "--line-1", main: "--line-0", unknown: "--faint" };

export function colourOf({ isSkip, isUnknown }: FlowPath): string {
  return isUnknown ? LINK_COLOURS.unknown : isSkip ? LINK_COLOURS.skip : LINK_COLOURS.main;
}

/** Draws the flow, for a picture that is saved. */
export function drawFlow(
  pen: CanvasRenderingContext2D,
  style: (name: string) => string,
  layout: FlowLayout,
  labels: readonly FlowLabel[],
  shares: readonly ShareLabel[],
): void {
  for (const { path, bands } of layout.paths) {
    pen.fillStyle = style(colourOf(path));
    pen.globalAlpha = 0.45;
    for (const { top, bottom, from, to } of bands) {
      const middle = (top + bottom) / 2;
      pen.beginPath();
      pen.moveTo(from[0], top);
      pen.bezierCurveTo(from[0], middle, to[0], middle, to[0], bottom);
      pen.lineTo(to[1], bottom);
      pen.bezierCurveTo(to[1], middle, from[1], middle, from[1], top);
      pen.closePath();
      pen.fill();
    }
  }
  pen.globalAlpha = 1;
  pen.fillStyle = style("--text");
  for (const { x, y, width } of layout.nodes) pen.fillRect(x, y, width, NODE_HEIGHT);
  pen.font = `11px ${style("--mono")}`;
  pen.textBaseline = "middle";
  pen.strokeStyle = style("--page");
  pen.lineWidth = 3;
  pen.lineJoin = "round";
  for (const { x, y, text, isRight, isInside } of labels) {
    pen.textAlign = isRight ? "right" : "left";
    if (isInside) pen.strokeText(text, x, y);
    pen.fillText(text, x, y);
  }
  pen.textAlign = "center";
  for (const { x, y, text } of shares) pen.fillText(text, x, y);
}

export interface FlowLabel {
  key: string;
  x: number;
  y: number;
  text: string;
  /** Whether it ends at x instead of beginning there. */
  isRight: boolean;
  /** Whether it stands on a band, whose colour it has to stand out from. */
  isInside: boolean;
}

/** Names: of each row's widest node at the left, of others beside them where there is room. */
export function flowLabels(
  layout: FlowLayout,
  left: number,
  right: number,
  cut: (text: string, width: number) => string,
  character: number,
): FlowLabel[] {
  const byRow = new Map<number, PlacedNode[]>();
  for (const placed of layout.nodes)
    byRow.set(placed.row, [...(byRow.get(placed.row) ?? []), placed]);
  return [...byRow.values()].flatMap((row) => {
    const [first, ...rest] = row.toSorted((a, b) => b.width - a.width);
    const y = first!.y + NODE_HEIGHT / 2;
    const labels = [
      {
        key: first!.node.key,
        x: left - 10,
        y,
        text: cut(first!.node.label, left - 16),
        isRight: true,
        isInside: false,
      },
    ];
    for (const { node, x, width } of rest) {
      const starts = x + width + 4;
      const next = Math.min(right, ...row.filter((other) => other.x > x).map((other) => other.x));
      const taken = layout.paths
        .flatMap(({ bands }) => bands)
        .filter((band) => band.top < y && band.bottom > y && band.to[0] > x);
      const free = Math.min(next, ...taken.map((band) => band.to[0])) - starts;
      const isBeside = free > Math.min(8, node.label.length) * character;
      const isInside = width > (node.label.length + 2) * character;
      if (isBeside) {
        labels.push({
          key: node.key,
          x: starts,
          y,
          text: cut(node.label, free),
          isRight: false,
          isInside: false,
        });
      } else if (isInside) {
        // On the band below it.
        labels.push({
          key: node.key,
          x: x + 8,
          y: y + 13,
          text: node.label,
          isRight: false,
          isInside: true,
        });
      }
    }
    return labels;
  });
}
