import { luminance, type RampName, type Rgb, rampColour, toCss } from "../colour";
import type { ColourScale } from "../scale";
import type { Camera } from "./camera";
import type { Graph } from "./model";
import type { Item } from "./nesting";
import type { Presence } from "./presence";
import type { Reach } from "./reach";
import type { Scene } from "./scene";
import type { Side, Sides } from "./sides";
import type { ItemValues } from "./values";

/** All that is needed to draw a scene once. */
export interface Drawing {
  graph: Graph;
  scene: Scene;
  camera: Camera;
  width: number;
  height: number;
  values: ItemValues;
  scale: ColourScale | null;
  format: (value: number) => string;
  shapeOf: (vertex: number) => string;
  presence: Presence;
  reach: Reach | null;
  /** The selected tensor, and what shows it. */
  vertex: number | null;
  selected: Item | null;
  hovered: Item | null;
  /** The colours of pinned tensors, by what shows them. */
  pins: ReadonlyMap<Item, string[]>;
  /** Which of two runs has what; null for the graph of one. */
  sides: Sides | null;
  isDark: boolean;
}

/** The page's own colours, read once for each drawing. */
export interface Palette {
  page: string;
  panel: string;
  raised: string;
  border: string;
  strong: string;
  line: string;
  text: string;
  dim: string;
  mark: string;
  nan: string;
  inf: string;
  up: string;
  down: string;
  accent: string;
  side: Record<Side, string>;
  mono: string;
  role: (name: string) => string;
}

export function readPalette(style: (name: string) => string): Palette {
  const roles = new Map<string, string>();
  return {
    page: style("--page"),
    panel: style("--panel"),
    raised: style("--raised"),
    border: style("--border"),
    strong: style("--border-strong"),
    line: style("--graph-line"),
    text: style("--text"),
    dim: style("--dim"),
    mark: style("--mark"),
    nan: style("--nan"),
    inf: style("--inf"),
    up: style("--upstream"),
    down: style("--downstream"),
    accent: style("--accent"),
    side: {
      both: style("--border-strong"),
      one: style("--line-0"),
      other: style("--line-1"),
      mixed: style("--text"),
    },
    mono: style("--mono"),
    role: (name) => {
      const known = roles.get(name) ?? (style(`--role-${name}`) || style("--faint"));
      roles.set(name, known);
      return known;
    },
  };
}

export interface Fill {
  css: string;
  /** Dark on light or light on dark: whichever can be read on it. */
  ink: string;
  dimInk: string;
  /** What is painted under words, where they would not be read on what is there. */
  plate?: string;
}

type Fills = Partial<Record<RampName, Fill[]>>;
const fills: { dark: Fills; light: Fills } = { dark: {}, light: {} };

/** The colour of a value; from 256 steps, which no eye tells apart. */
export function fillOf(scale: ColourScale, value: number, isDark: boolean): Fill {
  const known = isDark ? fills.dark : fills.light;
  known[scale.ramp] ??= Array.from({ length: 256 }, (_, step) =>
    fillFor(rampColour(scale.ramp, isDark, step / 255)),
  );
  return known[scale.ramp]![stepOf(scale, value)]!;
}

/** Where a value is among the 256 colours of a ramp. */
export function stepOf(scale: ColourScale, value: number): number {
  const place = scale.place(value, Number.NaN);
  return place > 0 ? Math.round(Math.min(1, place) * 255) : 0;
}

function fillFor(colour: Rgb): Fill {
  const isLight = luminance(colour) > 0.19;
  return {
    css: toCss(colour),
    ink: isLight ? "#0c0f13" : "#ffffff",
    dimInk: isLight ? "rgb(12 15 19 / 0.78)" : "rgb(255 255 255 / 0.8)",
  };
}

/** How strongly something is lit that is so many steps away: near things most. */
export function strength(distance: number, farthest: number): number {
  if (distance <= 1) return 1;
  return Math.max(0.35, 1 - (0.65 * (distance - 1)) / Math.max(4, farthest - 1));
}
