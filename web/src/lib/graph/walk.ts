import type { Graph } from "./model";
import { type Item, isVertexItem } from "./nesting";
import { type Placed, placedAs, type Scene } from "./scene";

export type Step = "up" | "down" | "before" | "after";

/** What a key leads to from something: along a line, or to what stands beside it. */
export function walk(graph: Graph, scene: Scene, from: Item | null, step: Step): Item | null {
  const at = placedAs(scene, from);
  if (!at) return firstItem(scene);
  if (step === "before" || step === "after") return beside(scene, at, step === "after");
  const [near, far] = step === "up" ? (["sink", "source"] as const) : (["source", "sink"] as const);
  const ends = scene.bundles.flatMap(({ links }) =>
    links
      .filter((link) => !link.isBack && link[near] === at.item)
      .map((link) => placedAs(scene, link[far])!),
  );
  const isParameter = ({ item }: Placed) =>
    isVertexItem(graph, item) && graph.vertices[item - graph.boxes.length]!.port === "inner";
  const main = ends.filter((end) => !isParameter(end));
  return nearest(main.length > 0 ? main : ends, at)?.item ?? null;
}

function firstItem(scene: Scene): Item | null {
  const closed = scene.placed.filter(({ isOpen }) => !isOpen);
  const first = closed.reduce<Placed | null>(
    (best, each) => (!best || each.y < best.y ? each : best),
    null,
  );
  return first?.item ?? null;
}

function beside(scene: Scene, at: Placed, isAfter: boolean): Item | null {
  const isDown = scene.direction === "down";
  const along = (each: Placed) => (isDown ? each.x + each.width / 2 : each.y + each.height / 2);
  const isInRow = (each: Placed) =>
    isDown
      ? each.y < at.y + at.height && at.y < each.y + each.height
      : each.x < at.x + at.width && at.x < each.x + each.width;
  const others = scene.placed.filter(
    (each) => !each.isOpen && each !== at && isInRow(each) && along(each) > along(at) === isAfter,
  );
  return nearest(others, at)?.item ?? null;
}

function nearest(list: readonly Placed[], to: Placed): Placed | null {
  const distance = (each: Placed) =>
    Math.hypot(
      each.x + each.width / 2 - to.x - to.width / 2,
      each.y + each.height / 2 - to.y - to.height / 2,
    );
  return list.reduce<Placed | null>(
    (best, each) => (!best || distance(each) < distance(best) ? each : best),
    null,
  );
}

/** What is drawn at a point: the innermost, and whether the point is on what opens and closes it. */
export function hit(graph: Graph, scene: Scene, x: number, y: number) {
  for (let i = scene.placed.length - 1; i >= 0; i--) {
    const placed = scene.placed[i]!;
    const isInside =
      x >= placed.x && y >= placed.y && x < placed.x + placed.width && y < placed.y + placed.height;
    if (!isInside || placed.item === scene.root) continue;
    const canOpen =
      !isVertexItem(graph, placed.item) && graph.boxes[placed.item]!.kind !== "tensor";
    const isToggle = canOpen && x < placed.x + 20 && y < placed.y + 26;
    return { placed, isToggle };
  }
  return null;
}
