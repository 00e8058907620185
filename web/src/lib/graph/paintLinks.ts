import type { Drawing, Palette } from "./look";
import { strength } from "./look";
import type { Bundle, Link } from "./scene";

const DATA = 2;
const ARROW_FROM = 0.35;
const CURVES_FROM = 0.12;
const SHORTEST = 2;
/** Of what only the other of two runs has. */
export const OTHER_DASH = [8, 3, 2, 3];

/** A line, and where the box that it is drawn in begins as seen from the camera. */
interface Line {
  link: Link;
  x: number;
  y: number;
}

interface Lit {
  line: Line;
  colour: string;
  alpha: number;
}

/** Draws the lines: plain ones in few strokes, then those of other roles, then those that are lit. */
export function paintLinks(context: CanvasRenderingContext2D, drawing: Drawing, palette: Palette) {
  const { reach } = drawing;
  const lit: Lit[] = [];
  const others: Line[] = [];
  const plain: Line[] = [];
  for (const line of seenLines(drawing)) {
    const how = reach && litBy(line, drawing, palette);
    if (how) lit.push(how);
    else if (reach && isOfOtherRole(line, drawing)) others.push(line);
    else plain.push(line);
  }
  context.save();
  context.lineJoin = "round";
  context.strokeStyle = palette.line;
  context.globalAlpha = reach ? 0.45 : 1;
  strokeAll(context, drawing, plain, 1);
  if (drawing.sides) strokeSides(context, drawing, plain, palette);
  context.globalAlpha = 1;
  context.strokeStyle = palette.dim;
  strokeAll(context, drawing, others, 0.6);
  for (const { line, colour, alpha } of lit.sort((a, b) => a.alpha - b.alpha)) {
    context.strokeStyle = colour;
    context.fillStyle = colour;
    context.globalAlpha = alpha;
    context.setLineDash(dashOf(line, drawing));
    context.lineWidth = 2;
    context.beginPath();
    trace(context, line, drawing);
    context.stroke();
    arrow(context, line, drawing);
  }
  context.restore();
}

/** Over the others, those that only one of two runs has: in its colour, whole or broken. */
function strokeSides(
  context: CanvasRenderingContext2D,
  drawing: Drawing,
  lines: readonly Line[],
  palette: Palette,
): void {
  for (const side of ["one", "other"] as const) {
    const own = lines.filter(({ link }) => drawing.sides!.ofLink(link) === side);
    context.strokeStyle = palette.side[side];
    context.fillStyle = palette.side[side];
    context.lineWidth = 2;
    context.setLineDash(side === "other" && drawing.camera.zoom >= CURVES_FROM ? OTHER_DASH : []);
    context.beginPath();
    for (const line of own) trace(context, line, drawing);
    context.stroke();
    for (const line of own) arrow(context, line, drawing);
  }
}

/** Nothing in a box that is out of sight is looked at: there may be ten thousand lines, a few of them seen. */
function seenLines(drawing: Drawing): Line[] {
  const { camera, scene } = drawing;
  const seen: Line[] = [];
  for (const { box, links } of scene.bundles) {
    if (!isBoxSeen(box, drawing)) continue;
    const [x, y] = [box.x - camera.x, box.y - camera.y];
    for (const link of links) if (isLinkSeen(link, x, y, drawing)) seen.push({ link, x, y });
  }
  return seen;
}

function isBoxSeen({ x, y, width, height }: Bundle["box"], drawing: Drawing): boolean {
  const { camera } = drawing;
  return (
    // All lines in it are shorter still.
    width + height >= SHORTEST / camera.zoom &&
    x + width >= camera.x &&
    y + height >= camera.y &&
    x <= camera.x + drawing.width / camera.zoom &&
    y <= camera.y + drawing.height / camera.zoom
  );
}

function isLinkSeen(link: Link, x: number, y: number, { camera, width, height }: Drawing): boolean {
  const { left, top, right, bottom } = link;
  return (
    // Between points, a line is a point too.
    right - left + bottom - top >= SHORTEST / camera.zoom &&
    x + right >= 0 &&
    y + bottom >= 0 &&
    x + left <= width / camera.zoom &&
    y + top <= height / camera.zoom
  );
}

/** Whether any of a line's edges is on a chain to or from the selected tensor, and how near. */
function litBy(line: Line, { graph, reach }: Drawing, palette: Palette): Lit | null {
  const { source, sink, isBack } = graph.edges;
  let nearest = Number.POSITIVE_INFINITY;
  let colour = "";
  for (const edge of line.link.edges) {
    const up = reach!.up[sink[edge]!]!;
    const down = reach!.down[source[edge]!]!;
    // A line that leads back is lit where the chain ends in it, and the chain is not followed further.
    const isUp = up >= 0 && (isBack[edge] === 1 || reach!.up[source[edge]!]! >= 0);
    const isDown = down >= 0 && (isBack[edge] === 1 || reach!.down[sink[edge]!]! >= 0);
    if (isUp && up + 1 < nearest) {
      nearest = up + 1;
      colour = palette.up;
    }
    if (isDown && down + 1 < nearest) {
      nearest = down + 1;
      colour = palette.down;
    }
  }
  if (!colour) return null;
  return { line, colour, alpha: strength(nearest, reach!.farthest) };
}

function isOfOtherRole({ link }: Line, { selected }: Drawing): boolean {
  return selected !== null && (link.source === selected || link.sink === selected);
}

function strokeAll(
  context: CanvasRenderingContext2D,
  drawing: Drawing,
  lines: readonly Line[],
  width: number,
): void {
  context.lineWidth = width;
  context.fillStyle = context.strokeStyle;
  const byDash = new Map<string, Line[]>();
  for (const line of lines) {
    const key = dashOf(line, drawing).join();
    const group = byDash.get(key);
    if (group) group.push(line);
    else byDash.set(key, [line]);
  }
  for (const [key, group] of byDash) {
    context.setLineDash(key ? key.split(",").map(Number) : []);
    context.beginPath();
    for (const line of group) trace(context, line, drawing);
    context.stroke();
    for (const line of group) arrow(context, line, drawing);
  }
}

/** Dots where no gradient flows, dashes into the next iteration. A line may lead upwards within an iteration too: to
 * something in a box from what the box made, and stands outside of it. */
export function dashOf(
  { link: { edges } }: { link: Pick<Link, "edges"> },
  { graph, camera }: Pick<Drawing, "graph" | "camera">,
): number[] {
  if (camera.zoom < CURVES_FROM) return [];
  if (edges.some((edge) => graph.edges.isBack[edge] === 1)) return [7, 4];
  return edges.every((edge) => graph.edges.kind[edge] === DATA) ? [2, 3] : [];
}

function trace(context: CanvasRenderingContext2D, line: Line, drawing: Drawing) {
  const { camera, scene } = drawing;
  const { points, isBack } = line.link;
  const x = (i: number) => (points[i]! + line.x) * camera.zoom;
  const y = (i: number) => (points[i + 1]! + line.y) * camera.zoom;
  const last = points.length - 2;
  context.moveTo(x(0), y(0));
  if (isBack) {
    const radius = 8 * camera.zoom;
    for (let i = 2; i < last; i += 2) context.arcTo(x(i), y(i), x(i + 2), y(i + 2), radius);
    context.lineTo(x(last), y(last));
    return;
  }
  const isPlain = camera.zoom < CURVES_FROM;
  for (let i = 2; i <= last; i += 2) {
    const [x0, y0, x1, y1] = [x(i - 2), y(i - 2), x(i), y(i)];
    if (isPlain || x0 === x1 || y0 === y1) context.lineTo(x1, y1);
    else if (scene.direction === "down") {
      context.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1);
    } else context.bezierCurveTo((x0 + x1) / 2, y0, (x0 + x1) / 2, y1, x1, y1);
  }
}

function arrow(context: CanvasRenderingContext2D, line: Line, { camera }: Drawing): void {
  if (camera.zoom < ARROW_FROM) return;
  const { points } = line.link;
  const last = points.length - 2;
  const x = (points[last]! + line.x) * camera.zoom;
  const y = (points[last + 1]! + line.y) * camera.zoom;
  const dx = Math.sign(points[last]! - points[last - 2]!);
  const dy = Math.sign(points[last + 1]! - points[last - 1]!);
  const size = 4 * Math.min(1, camera.zoom + 0.3);
  const [ux, uy] =
    dy !== 0 && Math.abs(points[last + 1]! - points[last - 1]!) > 0 ? [0, dy] : [dx, 0];
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x - ux * size * 1.5 - uy * size * 0.8, y - uy * size * 1.5 - ux * size * 0.8);
  context.lineTo(x - ux * size * 1.5 + uy * size * 0.8, y - uy * size * 1.5 + ux * size * 0.8);
  context.fill();
}
