import { truncateMiddle } from "../truncate";
import type { Drawing, Fill, Palette } from "./look";
import type { Box } from "./model";
import { isVertexItem } from "./nesting";
import { type Placed, SIZES } from "./scene";
import { chosenRole, type ItemValue, mainVertex, shownVertex } from "./values";

/** Where something is on the screen. */
export interface Spot {
  placed: Placed;
  x: number;
  y: number;
  width: number;
  height: number;
}

const CHARACTER = 0.605;
/** Lower than this on the screen, a box has no text, and one line, and two. */
const ONE_LINE = 11.5;
const TWO_LINES = 27;

/** After the lines, which would else run through it. */
export function paintTitle(
  context: CanvasRenderingContext2D,
  spot: Spot,
  drawing: Drawing,
  palette: Palette,
): void {
  const header = (SIZES.header - 4) * drawing.camera.zoom;
  if (header < ONE_LINE || spot.width < 40) return;
  const box = drawing.graph.boxes[spot.placed.item]!;
  const size = fontSize(12, drawing);
  const y = spot.y + header / 2 + 0.5;
  const left = spot.x + 20 * Math.min(1, drawing.camera.zoom);
  const room = Math.floor((spot.width - 26) / (size * CHARACTER));
  const label = truncateMiddle(box.label, room);
  const count = box.kind === "fold" ? `${box.about} × ${box.count}` : box.about;
  const about = room - label.length > 4 ? truncateMiddle(count, room - label.length - 2) : "";
  const labelWidth = label.length * size * CHARACTER;
  const aboutWidth = about.length * size * CHARACTER;
  context.fillStyle = spot.placed.depth % 2 === 1 ? palette.panel : palette.page;
  context.fillRect(left - 3, y - size * 0.65, labelWidth + aboutWidth + 12, size * 1.3);
  chevron(context, spot.x + 11 * Math.min(1, drawing.camera.zoom), y, true, palette.dim);
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillStyle = palette.text;
  context.font = `600 ${size}px ${palette.mono}`;
  context.fillText(label, left, y);
  context.fillStyle = palette.dim;
  context.font = `${size}px ${palette.mono}`;
  context.fillText(about, left + labelWidth + size * 0.8, y);
}

export function paintText(
  context: CanvasRenderingContext2D,
  spot: Spot,
  drawing: Drawing,
  palette: Palette,
  fill: Fill,
): void {
  if (spot.height < ONE_LINE || spot.width < 30) return;
  const { graph, values } = drawing;
  const { item } = spot.placed;
  const box = isVertexItem(graph, item) ? null : graph.boxes[item]!;
  const value = values.get(item);
  const number = drawing.sides?.signOf(item) ?? numberOf(value, drawing);
  const canOpen = box !== null && box.kind !== "tensor";
  const isTall = spot.height >= TWO_LINES && box !== null;
  const middle = spot.y + spot.height / 2;
  const first = isTall ? middle - spot.height * 0.2 : middle;
  const size = fontSize(12, drawing);
  const indent = (canOpen ? 20 : 10) * Math.min(1, drawing.camera.zoom);
  // On a hatch, words stand on a plate of the box's own colour.
  if (value?.hasNan || value?.hasInf) fill = { ...fill, plate: fill.css };
  if (canOpen) {
    const x = spot.x + 12 * Math.min(1, drawing.camera.zoom);
    if (fill.plate !== undefined) {
      context.fillStyle = fill.plate;
      context.fillRect(x - 5, first - size * 0.68, 10, size * 1.36);
    }
    chevron(context, x, first, false, fill.dimInk);
  }
  const label = labelOf(drawing, item);
  const line = { x: spot.x + indent, right: spot.x + spot.width - 7, y: first };
  const used = writeLine(context, line, label, number, size, palette, fill, "600 ");
  if (!isTall) {
    // On one line, the class comes after the name if there is room for all of it.
    const room = { ...line, x: line.x + used + size * 0.7 };
    const needed = (box?.about.length ?? 0) + number.length + 1;
    const hasRoom = room.right - room.x >= needed * size * CHARACTER;
    const faint = { ...fill, ink: fill.dimInk };
    if (hasRoom && box?.kind === "module")
      writeLine(context, room, box.about, "", size, palette, faint);
    return;
  }
  const small = fontSize(11, drawing);
  const shown = shownVertex(graph, box.index, drawing.vertex, values);
  const shape = shown === null ? "" : drawing.shapeOf(shown);
  const below = { ...line, x: spot.x + indent, y: middle + spot.height * 0.22 };
  const about = box.kind === "tensor" ? tensorAbout(drawing, box.index) : moduleAbout(drawing, box);
  writeLine(context, below, about, shape, small, palette, { ...fill, ink: fill.dimInk });
}

function numberOf(value: ItemValue | undefined, { format }: Drawing): string {
  if (!value) return "";
  if (!Number.isNaN(value.value)) return format(value.value);
  return value.hasNan ? "NaN" : "∞";
}

function labelOf({ graph }: Drawing, item: number): string {
  if (isVertexItem(graph, item)) return graph.vertices[item - graph.boxes.length]!.role;
  const box = graph.boxes[item]!;
  return box.count > 1 ? `${box.label} × ${box.count}` : box.label;
}

/** Of several tensors in one box, the role that is chosen, and how many there are. */
function tensorAbout({ graph, vertex, selected }: Drawing, index: number): string {
  const box = graph.boxes[index]!;
  if (box.vertices.length < 2) return box.about;
  const chosen = selected === index && vertex !== null ? graph.vertices[vertex]!.role : "";
  return chosen || `${box.vertices.length} roles`;
}

/** A module's class; before it the role that is chosen, unless it is the one that speaks for it. */
function moduleAbout({ graph, vertex }: Drawing, { index, about }: Box): string {
  const chosen = chosenRole(graph, index, vertex);
  if (chosen === null || chosen === mainVertex(graph, index)) return about;
  return `${graph.vertices[chosen]!.role} · ${about}`;
}

/** Numbers are no larger than this, and names too where both would not fit else. */
const NUMBER_SIZE = 11.5;
/** So much of a name is always seen beside a number. */
const SEEN = 10;
const GAP = 4;

/** How a name and a number share a line: whether there is room for the number, and how large and how many the
 * name's characters may be. */
export function shareLine(width: number, name: string, number: string, size: number) {
  const small = Math.min(size, NUMBER_SIZE);
  const beside = width - number.length * small * CHARACTER - GAP;
  const needed = Math.min(name.length, SEEN) * CHARACTER;
  const hasNumber = number !== "" && needed * small <= beside;
  const nameSize = hasNumber && needed * size > beside ? small : size;
  const room = Math.floor((hasNumber ? beside : width) / (nameSize * CHARACTER) + 1e-9);
  return { hasNumber, nameSize, room };
}

/** A name at the left and a number at the right, which gives way if there is no room for both.
 * Returns how wide the name is. */
function writeLine(
  context: CanvasRenderingContext2D,
  { x, right, y }: { x: number; right: number; y: number },
  name: string,
  number: string,
  size: number,
  palette: Palette,
  fill: Fill,
  weight = "",
): number {
  const { hasNumber, nameSize, room } = shareLine(right - x, name, number, size);
  const cut = truncateMiddle(name, room);
  const small = Math.min(size, NUMBER_SIZE);
  const numberLeft = right - number.length * small * CHARACTER;
  if (fill.plate !== undefined) {
    context.fillStyle = fill.plate;
    const [top, height] = [y - size * 0.68, size * 1.36];
    context.fillRect(x - 3, top, cut.length * nameSize * CHARACTER + 6, height);
    if (hasNumber) context.fillRect(numberLeft - 3, top, right - numberLeft + 6, height);
  }
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.font = `${weight}${nameSize}px ${palette.mono}`;
  context.fillStyle = fill.ink;
  context.fillText(cut, x, y);
  if (hasNumber) {
    context.textAlign = "right";
    context.font = `${small}px ${palette.mono}`;
    context.fillText(number, right, y);
  }
  return cut.length * nameSize * CHARACTER;
}

/** Text grows and shrinks a little with the picture, and is never too small to be read. */
function fontSize(size: number, { camera }: Drawing): number {
  return Math.max(10, Math.min(size * camera.zoom, size * 1.25));
}

function chevron(
  context: CanvasRenderingContext2D,
  x: number,
  y: number,
  isOpen: boolean,
  colour: string,
): void {
  context.strokeStyle = colour;
  context.lineWidth = 1.3;
  context.beginPath();
  if (isOpen) {
    context.moveTo(x - 3.5, y - 1.75);
    context.lineTo(x, y + 1.75);
    context.lineTo(x + 3.5, y - 1.75);
  } else {
    context.moveTo(x - 1.75, y - 3.5);
    context.lineTo(x + 1.75, y);
    context.lineTo(x - 1.75, y + 3.5);
  }
  context.stroke();
}
