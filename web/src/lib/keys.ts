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
    where: "In a run",
    keys: [
      { keys: ["1", "…", "9"], what: "the first nine views" },
      { keys: ["Shift 1", "…"], what: "the views after them" },
      { keys: ["←", "→"], what: "recorded step before, after" },
      { keys: ["Shift ←", "Shift →"], what: "ten recorded steps" },
      { keys: ["Home", "End"], what: "first, newest step" },
      { keys: ["F"], what: "follow the newest step" },
      { keys: ["Q"], what: "next quantity" },
      { keys: ["S"], what: "next statistic" },
      { keys: ["K"], what: "next kind of step" },
      { keys: ["<", ">"], what: "iteration before, after" },
      { keys: [",", "."], what: "sample before, after" },
      { keys: ["P"], what: "pin the selected tensor, or unpin it" },
      { keys: ["R"], what: "other run" },
      { keys: ["C"], what: "compare with other runs" },
      { keys: ["I"], what: "inspector in and out" },
      { keys: ["T"], what: "timeline in and out" },
    ],
  },
  {
    where: "List of runs",
    keys: [
      { keys: ["↑", "↓"], what: "move" },
      { keys: ["Enter"], what: "open the run" },
      { keys: ["X"], what: "select the run, or not" },
      { keys: ["C"], what: "compare the selected runs" },
    ],
  },
  {
    where: "Findings",
    keys: [
      { keys: ["↑", "↓"], what: "finding before, after" },
      { keys: ["Enter"], what: "show it in the graph" },
      { keys: ["Shift Enter"], what: "show its tensor" },
      { keys: ["Space"], what: "open or close it" },
      { keys: ["M"], what: "mute it, or not" },
      { keys: ["A"], what: "also what is unsure, muted or not checked" },
    ],
  },
  {
    where: "Heatmap",
    keys: [
      { keys: ["↑", "↓", "←", "→"], what: "move the cell" },
      { keys: ["Enter"], what: "open the cell's tensor" },
      { keys: ["+", "−", "0"], what: "taller rows, lower rows, all rows and steps" },
    ],
  },
  {
    where: "Tensor",
    keys: [
      { keys: ["↑", "↓"], what: "site before, after" },
      { keys: ["E"], what: "over steps, raw values, samples" },
      { keys: ["B"], what: "raw values as heatmap or table" },
      { keys: ["Enter"], what: "into the raw values, then arrows move the cell" },
    ],
  },
  {
    where: "Graph",
    keys: [
      { keys: ["↑", "↓"], what: "to what it depends on, to what depends on it" },
      { keys: ["[", "]"], what: "to what stands beside it" },
      { keys: ["Enter"], what: "open or close the box" },
      { keys: ["Shift Enter"], what: "go into the box" },
      { keys: ["O"], what: "open all boxes, or as at first" },
      { keys: ["Backspace"], what: "go out of the box" },
      { keys: ["Space"], what: "play through the steps" },
      { keys: ["+", "−", "0"], what: "nearer, farther, fit" },
      { keys: ["N"], what: "network tree in and out" },
      { keys: ["V"], what: "downwards or to the right" },
    ],
  },
  {
    where: "Flow",
    keys: [
      { keys: ["↑", "↓"], what: "tensor before, after" },
      { keys: ["Enter"], what: "open the tensor" },
    ],
  },
  {
    where: "Compare",
    keys: [
      { keys: ["E"], what: "scalars, differences, tensor, structure" },
      {
        keys: ["D", "Shift D"],
        what: "open what differs and go to the next or the previous of it, in the structure's picture",
      },
    ],
  },
];

/** Whether a menu was asked for with a key, and not at a place that is pointed at. */
export function isMenuKey(event: MouseEvent): boolean {
  return event.button < 0 || (event instanceof PointerEvent && event.pointerType === "");
}

/** Whether a key press belongs to a field that takes text, or to an open dialog. */
export function isTyping(event: KeyboardEvent): boolean {
  const target = event.target;
  if (!(target instanceof HTMLElement)) return false;
  return target.closest("input, textarea, select, dialog[open], [contenteditable]") !== null;
}
