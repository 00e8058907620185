import type { Edit } from "./state.svelte";

/** What the hand does to the input's cells. */
export const TOOLS = ["select", "toggle", "paint", "noise", "occlude"] as const;
export type Tool = (typeof TOOLS)[number];

export const TOOL_LABELS: Record<Tool, string> = {
  select: "Select",
  toggle: "Toggle",
  paint: "Paint",
  noise: "Noise",
  occlude: "Occlude",
};

/** The tool in hand: it is the same for every map. */
export class Hand {
  tool = $state<Tool>("toggle");
  /** What a cell is toggled to or painted with. */
  value = $state(1);
  brush = $state(1);
  sigma = $state(0.3);

  /** What a cell becomes that has a value now. */
  valueOver(current: number): number {
    if (this.tool === "occlude") return 0;
    // Cells are 32 bits wide, and the number that was typed is not.
    const isSet = this.tool === "toggle" && current === Math.fround(this.value);
    return isSet ? 0 : this.value;
  }

  /** The tool, used on some cells that have these values; null where it only looks. */
  use(layer: string, cells: number[], values: number[], seed: number): Edit | null {
    if (this.tool === "select") return null;
    if (this.tool === "noise") return { op: "noise", layer, cells, sigma: this.sigma, seed };
    return { op: "set", layer, cells, values };
  }
}
