export interface KeyHelp {
  keys: string[];
  what: string;
}

export const KEYS: { where: string; keys: KeyHelp[] }[] = [
  {
    where: "Everywhere",
    keys: [
      { keys: ["?"], what: "this list" },
      { keys: ["Esc"], what: "one level out" },
      { keys: ["/"], what: "search" },
      { keys: ["D"], what: "theme: system, light, dark" },
    ],
  },
  {
    where: "List of runs",
    keys: [
      { keys: ["↑", "↓"], what: "move" },
      { keys: ["Enter"], what: "open the run" },
    ],
  },
  {
    where: "Heatmap",
    keys: [
      { keys: ["↑", "↓", "←", "→"], what: "move the cell" },
      { keys: ["Enter"], what: "open the cell's tensor" },
      { keys: ["+", "−", "0"], what: "taller rows, lower rows, all rows" },
    ],
  },
  { where: "Tensor", keys: [{ keys: ["↑", "↓"], what: "site before, after" }] },
  {
    where: "In a run",
    keys: [
      { keys: ["1", "2", "3"], what: "overview, heatmap, tensor" },
      { keys: ["←", "→"], what: "recorded step before, after" },
      { keys: ["Shift ←", "Shift →"], what: "ten recorded steps" },
      { keys: ["Home", "End"], what: "first, newest step" },
      { keys: ["F"], what: "follow the newest step" },
      { keys: ["Q"], what: "next quantity" },
      { keys: ["S"], what: "next statistic" },
      { keys: ["R"], what: "other run" },
      { keys: ["I"], what: "inspector in and out" },
      { keys: ["T"], what: "timeline in and out" },
    ],
  },
];

/** Whether a key press belongs to a field that takes text, or to an open dialog. */
export function isTyping(event: KeyboardEvent): boolean {
  const target = event.target;
  if (!(target instanceof HTMLElement)) return false;
  return target.closest("input, textarea, select, dialog[open], [contenteditable]") !== null;
}
