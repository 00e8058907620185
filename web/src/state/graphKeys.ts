import { isVertexItem } from "../lib/graph/nesting";
import { canOpen } from "../lib/graph/open";
import { type Step, walk } from "../lib/graph/walk";
import type { GraphPicture } from "./graphPicture.svelte";
import { selection } from "./selection.svelte";

/** What moves a picture of a graph. */
export interface GraphView {
  show: (item: number) => void;
  zoom: (factor: number) => void;
  fitAll: () => void;
}

/** The keys of every picture of a graph: to walk, to open and enter, to zoom. */
export function graphKeys(
  picture: GraphPicture,
  view: () => GraphView | undefined,
): Record<string, (event: KeyboardEvent) => void> {
  const go = (step: Step) => {
    const { graph, scene } = picture;
    const item = graph && scene && walk(graph, scene, picture.selected, step);
    if (item === null) return;
    picture.select(item);
    view()?.show(item);
  };
  return {
    ArrowUp: () => go("up"),
    ArrowDown: () => go("down"),
    "[": () => go("before"),
    "]": () => go("after"),
    Enter: (event) => act(picture, event.shiftKey),
    Backspace: () => out(picture),
    "+": () => view()?.zoom(1.3),
    "=": () => view()?.zoom(1.3),
    "-": () => view()?.zoom(1 / 1.3),
    "0": () => view()?.fitAll(),
    o: () => picture.toggleAll(),
    v: turn,
  };
}

/** From the box that is entered to the one around it. */
export function out({ graph, root }: GraphPicture): void {
  const parent = graph?.boxes[graph.boxes[root]!.parent];
  if (parent) selection.change({ inside: parent.id });
}

/** Top to bottom, or left to right. */
export function turn(): void {
  selection.change({ direction: selection.current.direction === "down" ? "right" : "down" });
}

function act(picture: GraphPicture, isEntering: boolean): void {
  const { graph, scene, selected: item } = picture;
  if (item === null || !graph) return;
  // A tensor of an open box speaks for it: the same key closes it again.
  const box = isVertexItem(graph, item) ? graph.vertices[item - graph.boxes.length]!.box : item;
  if (!canOpen(graph.boxes[box]!)) return;
  if (isEntering) picture.enter(box);
  else if (box !== scene?.root) picture.toggle(box);
}
