import type { Graph } from "./model";
import type { Picked } from "./moment";
import type { Item } from "./nesting";
import type { Scene } from "./scene";

/** What the graph has and the selected iteration has not. */
export interface Presence {
  /** Nothing was seen of it. */
  isAbsent: Set<Item>;
  /** It depends on something in another iteration, and on nothing in this one. */
  lacksSources: Set<Item>;
  lacksSinks: Set<Item>;
}

export const ALL_PRESENT: Presence = {
  isAbsent: new Set(),
  lacksSources: new Set(),
  lacksSinks: new Set(),
};

const OWNED = new Set(["parameter", "buffer"]);

export function presenceOf(
  graph: Graph,
  scene: Scene,
  picked: Picked,
  iteration: number,
  iterations: number,
): Presence {
  const { edges, vertices } = graph;
  const isOwned = vertices.map(({ colour }) => OWNED.has(colour));
  const isThere = vertices.map(({ site }, i) => isOwned[i] || (picked.row[site] ?? -1) >= 0);
  const isOutside = vertices.map(({ site }, i) => isOwned[i] || picked.isOutside[site] === 1);
  // What comes from the iteration before, at the first from before them all.
  const wasThere = vertices.map(({ site }) => iteration > 0 || picked.isInitial[site] === 1);
  const last = iterations - 1;
  const hasSource = new Map<Item, boolean>();
  const hasSink = new Map<Item, boolean>();
  for (let i = 0; i < edges.source.length; i++) {
    const source = edges.source[i]!;
    const sink = edges.sink[i]!;
    const [upper, lower] = [scene.itemOfVertex[source]!, scene.itemOfVertex[sink]!];
    if (upper === lower) continue;
    const isBack = edges.isBack[i] === 1;
    // What is seen once after all iterations was made from the last of them.
    const isAfter = isOutside[sink] === true && !isOutside[source];
    const isActive = isThere[source]! && isThere[sink]! && !(isAfter && iteration !== last);
    note(hasSource, lower, isBack ? isThere[sink]! && wasThere[source]! : isActive || isAfter);
    note(hasSink, upper, isBack ? isThere[source]! && iteration < last : isActive);
  }
  return {
    isAbsent: absentItems(scene, isThere as boolean[]),
    lacksSources: without(hasSource),
    lacksSinks: without(hasSink),
  };
}

function note(known: Map<Item, boolean>, item: Item, isActive: boolean): void {
  known.set(item, isActive || (known.get(item) ?? false));
}

function without(known: ReadonlyMap<Item, boolean>): Set<Item> {
  return new Set([...known].filter(([, has]) => !has).map(([item]) => item));
}

function absentItems(scene: Scene, isThere: readonly boolean[]): Set<Item> {
  const seen = new Map<Item, boolean>();
  for (const [vertex, item] of scene.itemOfVertex.entries()) {
    if (item >= 0) note(seen, item, isThere[vertex]!);
  }
  return without(seen);
}
