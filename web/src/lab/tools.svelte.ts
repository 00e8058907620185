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
}
