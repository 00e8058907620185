import type { Box, Graph } from "./model";

/** What is open at first: the model, and whatever is the only thing in what is open. */
export function openAtFirst(graph: Graph): Set<number> {
  const open = new Set<number>();
  const visit = (index: number) => {
    const modules = graph.boxes[index]!.children.filter(
      (child) => graph.boxes[child]!.kind === "module",
    );
    if (modules.length !== 1 || graph.boxes[modules[0]!]!.children.length === 0) return;
    open.add(modules[0]!);
    visit(modules[0]!);
  };
  visit(0);
  return open;
}

/** Stands among what is toggled for all that holds other boxes; what stands beside it is toggled after that. */
export const ALL = "*";

export function openBoxes(graph: Graph, toggled: readonly string[]): Set<number> {
  const open = toggled.includes(ALL) ? allOpen(graph) : openAtFirst(graph);
  for (const id of toggled) {
    const box = graph.boxById.get(id);
    if (box === undefined || !canOpen(graph.boxes[box]!)) continue;
    if (!open.delete(box)) open.add(box);
  }
  return open;
}

function allOpen(graph: Graph): Set<number> {
  const open = new Set<number>();
  for (const [index, { kind, children }] of graph.boxes.entries())
    if (index > 0 && kind !== "tensor" && children.length > 0) open.add(index);
  return open;
}

export function canOpen(box: Box): boolean {
  return box.kind !== "tensor" && box.children.length + box.vertices.length > 0;
}

export function toggle(toggled: readonly string[], id: string): string[] {
  return toggled.includes(id) ? toggled.filter((other) => other !== id) : [...toggled, id];
}

/** Up to so many names of boxes stand in the address as they were toggled. */
const MOST_NAMES = 50;

/** The same boxes open, said in fewer words if nearly all of them are: all but those that are named. */
export function inFewWords(graph: Graph, toggled: string[]): string[] {
  if (toggled.length <= MOST_NAMES || toggled.includes(ALL)) return toggled;
  const [open, all] = [openBoxes(graph, toggled), allOpen(graph)];
  const others = [...new Set([...all, ...open])].filter((box) => open.has(box) !== all.has(box));
  const words = [ALL, ...others.map((box) => graph.boxes[box]!.id)];
  return words.length < toggled.length ? words : toggled;
}

/** What has to be toggled so that everything around a box is open. */
export function openAround(graph: Graph, toggled: readonly string[], box: number): string[] {
  const open = openBoxes(graph, toggled);
  let changed = [...toggled];
  for (let at = graph.boxes[box]!.parent; at > 0; at = graph.boxes[at]!.parent) {
    if (!open.has(at)) changed = toggle(changed, graph.boxes[at]!.id);
  }
  return changed;
}

/** A box and all that are around it, outermost first, without the whole. */
export function trailOf(graph: Graph, box: number): Box[] {
  const trail: Box[] = [];
  for (let at = box; at > 0; at = graph.boxes[at]!.parent) trail.unshift(graph.boxes[at]!);
  return trail;
}

/** The equal boxes of a fold that a box is one of, in order; empty if it is none. */
export function instancesOf(graph: Graph, box: number): number[] {
  let at = graph.boxes[box]!.parent;
  while (at > 0 && graph.boxes[at]!.kind === "group") at = graph.boxes[at]!.parent;
  const around = graph.boxes[at];
  if (around?.kind !== "fold") return [];
  const found: number[] = [];
  const visit = (index: number) => {
    const { kind, children } = graph.boxes[index]!;
    if (kind === "group" && index !== box && graph.boxes[box]!.kind !== "group")
      children.forEach(visit);
    else found.push(index);
  };
  for (const child of around.children) visit(child);
  return found.includes(box) ? found : [];
}
