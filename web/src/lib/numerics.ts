import type { Site } from "../connectors/connector";

/** What the view Numerics keeps in the address, under names of its own. */
export interface NumericsOptions {
  /** The formats whose ranges are drawn in. */
  formats: string[];
  /** The format whose losses the heatmap shows. */
  format: string;
  /** A power of two, or `best`. */
  scale: string;
  loss: Loss;
  set: SiteSet;
}

export const LOSSES = {
  lost: "overflow + underflow",
  overflow: "overflow",
  underflow: "underflow",
  subnormal: "subnormal",
} as const;
export type Loss = keyof typeof LOSSES;
export type SiteSet = "filter" | "pins" | "selected";

export const SCALES = ["0", "best", "4", "8", "12", "16", "24"];
const STANDARD_FORMATS = ["float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"];

export function readNumerics(more: Readonly<Record<string, string>>): NumericsOptions {
  const formats = more.formats?.split(",").filter((name) => name && name !== "none");
  return {
    formats: formats ?? STANDARD_FORMATS,
    format: more.format || "float8_e4m3fn",
    scale: /^(best|-?\d{1,3})$/.test(more.scale2 ?? "") ? more.scale2! : "0",
    loss: more.loss && Object.hasOwn(LOSSES, more.loss) ? (more.loss as Loss) : "lost",
    set: more.set === "pins" || more.set === "selected" ? more.set : "filter",
  };
}

const MOST_CARDS = 24;

/** The sites whose histograms are shown, the selected one first, and how many there would be. */
export function chosenSites(
  set: SiteSet,
  passing: readonly Site[],
  byName: ReadonlyMap<string, Site>,
  pins: readonly string[],
  selected: Site | null,
): { shown: Site[]; all: number } {
  const chosen =
    set === "selected"
      ? []
      : set === "filter"
        ? passing
        : pins.map((name) => byName.get(name)).filter((site) => site !== undefined);
  const all = selected ? [selected, ...chosen.filter((site) => site !== selected)] : [...chosen];
  const found = set === "pins" ? [...chosen] : all;
  return { shown: found.slice(0, MOST_CARDS), all: found.length };
}
