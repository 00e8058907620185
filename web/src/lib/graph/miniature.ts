import { MARKS, pack, parseHex, ramp } from "../colour";
import type { ColourScale } from "../scale";
import type { Camera, Rect } from "./camera";
import { stepOf } from "./look";
import { type Scene, SIZES } from "./scene";
import type { ItemValues } from "./values";

export interface Miniature {
  width: number;
  height: number;
  /** Pixels for each unit of the scene. */
  by: number;
  values: ItemValues;
  scale: ColourScale | null;
  dark: boolean;
  /** The colour of what has no value, as hexadecimal digits. */
  plain: string;
}

const MOST = { width: 168, height: 120 };
const LEAST = 24;
/** How far a map is from the edges of the window, and how wide its own edge is, as it is styled. */
const BESIDE = 12;
const EDGE = 5;

/** How large the map of a scene is, and how many pixels it has for each unit of that. */
export interface MapSize {
  width: number;
  height: number;
  by: number;
}

type Extent = Pick<Scene, "width" | "height">;

export function mapSize({ width, height }: Extent): MapSize {
  const by = Math.min(MOST.width / width, MOST.height / height);
  return { width: Math.max(LEAST, width * by), height: Math.max(LEAST, height * by), by };
}

/** Whether more of a scene is out of sight than its empty edge: only then it has a map. */
export function hasMap(scene: Extent, { x, y, zoom }: Camera, width: number, height: number) {
  const { pad } = SIZES;
  return (
    x > pad ||
    y > pad ||
    x + width / zoom < scene.width - pad ||
    y + height / zoom < scene.height - pad
  );
}

/** What the map of a scene covers of a window: the lower right corner. */
export function mapCorner(scene: Extent, width: number, height: number): Rect {
  const map = mapSize(scene);
  const [wide, high] = [map.width + BESIDE + EDGE, map.height + BESIDE + EDGE];
  return { x: width - wide, y: height - high, width: wide, height: high };
}

/** Paints all closed boxes of a scene as pixels: there may be thousands, most of them smaller than one. */
export function paintMiniature(pixels: Uint32Array, scene: Scene, how: Miniature): void {
  const { width, height, by, values, scale, dark } = how;
  const nan = pack(parseHex(MARKS[dark ? "dark" : "light"].nan));
  const plain = pack(parseHex(how.plain));
  const colours = scale && ramp(scale.ramp, dark);
  const broken: number[] = [];
  for (const box of scene.placed) {
    if (box.isOpen) continue;
    const value = values.get(box.item);
    const left = Math.floor(box.x * by);
    const top = Math.floor(box.y * by);
    if (value?.hasNan) broken.push(left, top);
    const isColoured = value && colours && !Number.isNaN(value.value);
    const colour = isColoured ? colours[stepOf(scale, value.value)]! : plain;
    const right = Math.min(width, Math.max(left + 1, Math.round((box.x + box.width) * by)));
    const bottom = Math.min(height, Math.max(top + 1, Math.round((box.y + box.height) * by)));
    for (let y = top; y < bottom; y++) pixels.fill(colour, y * width + left, y * width + right);
  }
  // What is broken is over the rest, and large enough to be seen.
  for (let i = 0; i < broken.length; i += 2) {
    const left = Math.max(0, broken[i]! - 1);
    const top = Math.max(0, broken[i + 1]! - 1);
    for (let y = top; y < Math.min(height, top + 3); y++)
      pixels.fill(nan, y * width + left, y * width + Math.min(width, left + 3));
  }
}
