import { type Drawing, type Fill, fillOf, type Palette, strength } from "./look";
import { isVertexItem } from "./nesting";
import { OTHER_DASH, paintLinks } from "./paintLinks";
import { paintText, paintTitle, type Spot } from "./paintText";
import type { Placed } from "./scene";
import { shownVertex } from "./values";

const GREYED = 0.55;
/** Lower than this on the screen, in pixels, a box is a point. */
const SPECK = 3;

export function paintScene(context: CanvasRenderingContext2D, drawing: Drawing, palette: Palette) {
  const spots: Spot[] = [];
  const specks: Placed[] = [];
  const smallest = SPECK / drawing.camera.zoom;
  for (const placed of seenBoxes(drawing)) {
    if (placed.height >= smallest) spots.push(spotOf(placed, drawing));
    else if (!placed.isOpen) specks.push(placed);
  }
  for (const spot of spots) if (spot.placed.isOpen) paintFrame(context, spot, drawing, palette);
  paintLinks(context, drawing, palette);
  paintSpecks(context, specks, drawing, palette);
  for (const spot of spots) if (!spot.placed.isOpen) paintBox(context, spot, drawing, palette);
  for (const spot of spots) if (spot.placed.isOpen) paintTitle(context, spot, drawing, palette);
  context.globalAlpha = 1;
}

/** Boxes that are hardly more than points: those that would hide each other are drawn once, but what
 * is broken, lit or selected is drawn over the rest, and large enough to be seen. */
function paintSpecks(
  context: CanvasRenderingContext2D,
  specks: readonly Placed[],
  drawing: Drawing,
  palette: Palette,
): void {
  const { camera, values, scale, reach, isDark } = drawing;
  const over: [colour: string, x: number, y: number][] = [];
  let [xBefore, yBefore] = [Number.NaN, Number.NaN];
  for (const { item, x: left, y: top, width, height } of specks) {
    const x = Math.round((left - camera.x) * camera.zoom);
    const y = Math.round((top - camera.y) * camera.zoom);
    const value = values.get(item);
    if (value?.hasNan) over.push([palette.nan, x, y]);
    if (item === drawing.selected) over.push([palette.mark, x, y]);
    if (x === xBefore && y === yBefore) continue;
    [xBefore, yBefore] = [x, y];
    const isUp = reach && reach.upOfItem[item]! >= 0;
    const isColoured = value && scale && !Number.isNaN(value.value);
    const isLit = isUp || (reach && reach.downOfItem[item]! >= 0);
    if (isLit) context.fillStyle = isUp ? palette.up : palette.down;
    else if (isColoured && !reach) context.fillStyle = fillOf(scale, value.value, isDark).css;
    else context.fillStyle = palette.side[drawing.sides?.ofItem(item) ?? "both"];
    const wide = Math.max(1, width * camera.zoom);
    context.fillRect(x, y, wide, Math.max(1, height * camera.zoom));
  }
  for (const [colour, x, y] of over) {
    context.fillStyle = colour;
    context.fillRect(x - 1, y - 1, 3, 3);
  }
}

/** All but the whole itself. What is in a box that is out of sight is not looked at. */
function seenBoxes({ scene, camera, width, height }: Drawing): Placed[] {
  const margin = 12 / camera.zoom;
  const [left, top] = [camera.x - margin, camera.y - margin];
  const [right, bottom] = [camera.x + width / camera.zoom, camera.y + height / camera.zoom];
  const seen: Placed[] = [];
  for (let i = 1; i < scene.placed.length; ) {
    const placed = scene.placed[i]!;
    const isSeen =
      placed.x < right &&
      placed.y < bottom &&
      placed.x + placed.width > left &&
      placed.y + placed.height > top;
    if (isSeen) seen.push(placed);
    i = isSeen ? i + 1 : placed.end;
  }
  return seen;
}

function spotOf(placed: Placed, { camera }: Drawing): Spot {
  return {
    placed,
    x: (placed.x - camera.x) * camera.zoom,
    y: (placed.y - camera.y) * camera.zoom,
    width: placed.width * camera.zoom,
    height: placed.height * camera.zoom,
  };
}

function paintFrame(
  context: CanvasRenderingContext2D,
  spot: Spot,
  drawing: Drawing,
  palette: Palette,
): void {
  context.globalAlpha = 1;
  context.fillStyle = spot.placed.depth % 2 === 1 ? palette.panel : palette.page;
  outline(context, spot);
  context.fill();
  context.strokeStyle = spot.placed.item === drawing.hovered ? palette.dim : palette.strong;
  context.lineWidth = 1;
  context.stroke();
  paintSide(context, spot, drawing, palette);
}

/** Whose it is: by colour, and by a line that is whole or broken. */
function paintSide(
  context: CanvasRenderingContext2D,
  spot: Spot,
  { sides }: Drawing,
  palette: Palette,
): void {
  const side = sides?.ofItem(spot.placed.item) ?? "both";
  if (side === "both" || (side === "mixed" && spot.placed.isOpen)) return;
  context.save();
  outline(context, spot);
  context.fillStyle = palette.side[side];
  context.globalAlpha = side === "mixed" ? 0 : 0.14;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = palette.side[side];
  context.lineWidth = side === "mixed" ? 1 : 2;
  if (side === "other") context.setLineDash(OTHER_DASH);
  context.stroke();
  context.restore();
}

function paintBox(
  context: CanvasRenderingContext2D,
  spot: Spot,
  drawing: Drawing,
  palette: Palette,
): void {
  const { item } = spot.placed;
  const { reach, presence, graph } = drawing;
  const up = reach?.upOfItem[item] ?? -1;
  const down = reach?.downOfItem[item] ?? -1;
  const isTied = !reach || up >= 0 || down >= 0;
  context.globalAlpha = isTied ? 1 : GREYED;
  const box = isVertexItem(graph, item) ? null : graph.boxes[item]!;
  if (box && box.count > 1 && spot.height > 8) paintStack(context, spot, palette);
  const fill = paintFill(context, spot, drawing, palette, isTied);
  paintBorder(context, spot, drawing, palette);
  paintSide(context, spot, drawing, palette);
  if (reach && isTied && item !== drawing.selected) {
    const isUp = up >= 0 && (down < 0 || up <= down);
    const distance = isUp ? up : down;
    context.strokeStyle = isUp ? palette.up : palette.down;
    context.globalAlpha = strength(distance, reach.farthest);
    ring(context, spot, spot.height > 10 ? 2 : 1);
  }
  context.globalAlpha = isTied ? 1 : GREYED;
  paintText(context, spot, drawing, palette, fill);
  context.globalAlpha = 1;
  if (item === drawing.selected) {
    context.strokeStyle = palette.mark;
    ring(context, spot, 2.5);
  }
  paintPins(context, spot, drawing.pins.get(item) ?? [], palette);
  if (presence.lacksSources.has(item)) dotted(context, spot, drawing, palette, true);
  if (presence.lacksSinks.has(item)) dotted(context, spot, drawing, palette, false);
}

function paintStack(context: CanvasRenderingContext2D, spot: Spot, palette: Palette): void {
  for (const offset of [6, 3]) {
    const shift = offset * Math.min(1, spot.height / 44);
    context.fillStyle = palette.raised;
    context.strokeStyle = palette.strong;
    context.lineWidth = 1;
    outline(context, { ...spot, x: spot.x + shift, y: spot.y + shift });
    context.fill();
    context.stroke();
  }
}

/** The value's colour, unless it is not tied to what is selected; a hatch of its own for NaN and infinity; paper where there is nothing. */
function paintFill(
  context: CanvasRenderingContext2D,
  spot: Spot,
  drawing: Drawing,
  palette: Palette,
  isTied: boolean,
): Fill {
  const value = drawing.values.get(spot.placed.item);
  const plain = { css: palette.raised, ink: palette.text, dimInk: palette.dim };
  const hasColour = isTied && value && drawing.scale && !Number.isNaN(value.value);
  const fill = hasColour ? fillOf(drawing.scale!, value.value, drawing.isDark) : plain;
  context.fillStyle = fill.css;
  outline(context, spot);
  context.fill();
  if (value?.hasNan || value?.hasInf) {
    hatch(context, spot, value.hasNan ? palette.nan : palette.inf);
  }
  return fill;
}

function hatch(context: CanvasRenderingContext2D, spot: Spot, colour: string): void {
  context.save();
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.beginPath();
  for (let at = -spot.height; at < spot.width; at += 6) {
    context.moveTo(spot.x + at, spot.y + spot.height);
    context.lineTo(spot.x + at + spot.height, spot.y);
  }
  context.stroke();
  context.restore();
}

function paintBorder(
  context: CanvasRenderingContext2D,
  spot: Spot,
  drawing: Drawing,
  palette: Palette,
): void {
  const { item } = spot.placed;
  if (spot.height < 4) return;
  const isAbsent = drawing.presence.isAbsent.has(item);
  context.strokeStyle = item === drawing.hovered ? palette.mark : palette.strong;
  context.lineWidth = 1;
  if (isAbsent) context.setLineDash([3, 3]);
  outline(context, spot);
  context.stroke();
  context.setLineDash([]);
  // Of two runs, a role's colour would seem to be one's.
  const { sides } = drawing;
  context.fillStyle = sides
    ? palette.side[sides.ofItem(item)]
    : palette.role(roleOf(spot.placed, drawing));
  context.fillRect(spot.x, spot.y, Math.max(1.5, Math.min(4, spot.width * 0.03)), spot.height);
}

/** The role whose number is shown: of what is chosen in it, else of what speaks for it. */
function roleOf({ item }: Placed, { graph, values, vertex }: Drawing): string {
  if (isVertexItem(graph, item)) return graph.vertices[item - graph.boxes.length]!.colour;
  const shown = shownVertex(graph, item, vertex, values);
  return shown === null ? "buffer" : graph.vertices[shown]!.colour;
}

function outline(context: CanvasRenderingContext2D, { x, y, width, height }: Spot): void {
  context.beginPath();
  if (height < 8) context.rect(x, y, Math.max(1, width), Math.max(1, height));
  else context.roundRect(Math.round(x) + 0.5, Math.round(y) + 0.5, width - 1, height - 1, 3);
}

function ring(
  context: CanvasRenderingContext2D,
  { x, y, width, height }: Spot,
  line: number,
): void {
  context.lineWidth = line;
  context.beginPath();
  context.roundRect(x - line / 2, y - line / 2, width + line, height + line, 4);
  context.stroke();
}

/** A dot for each tensor in it that is pinned. */
function paintPins(
  context: CanvasRenderingContext2D,
  { x, y, width, height }: Spot,
  colours: readonly string[],
  palette: Palette,
): void {
  const radius = Math.max(2, Math.min(5, height * 0.14));
  for (const [index, colour] of colours.entries()) {
    context.beginPath();
    context.arc(x + width - radius * (1 + 2.4 * index), y, radius, 0, 2 * Math.PI);
    context.fillStyle = colour;
    context.fill();
    context.strokeStyle = palette.page;
    context.lineWidth = 1;
    context.stroke();
  }
}

/** A side on which the graph has dependencies, and this iteration none. */
function dotted(
  context: CanvasRenderingContext2D,
  { x, y, width, height }: Spot,
  { scene }: Drawing,
  palette: Palette,
  isStart: boolean,
): void {
  if (height < 6) return;
  const lines = [palette.page, palette.mark];
  for (const [i, colour] of lines.entries()) {
    context.strokeStyle = colour;
    context.lineWidth = i === 0 ? 3 : 2;
    context.setLineDash(i === 0 ? [] : [2, 4]);
    context.beginPath();
    if (scene.direction === "down") {
      const at = isStart ? y : y + height;
      context.moveTo(x + 2, at);
      context.lineTo(x + width - 2, at);
    } else {
      const at = isStart ? x : x + width;
      context.moveTo(at, y + 2);
      context.lineTo(at, y + height - 2);
    }
    context.stroke();
  }
  context.setLineDash([]);
}
