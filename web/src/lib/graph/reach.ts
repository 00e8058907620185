import type { Graph } from "./model";
import type { Scene } from "./scene";

/** How far things are from the selected tensor, in things that are drawn; -1 where they are not tied. */
export interface Reach {
  /** Of each vertex that the selected one depends on. */
  up: Int32Array;
  /** Of each vertex that depends on the selected one. */
  down: Int32Array;
  /** The same of each item that is drawn: the least of its vertices. */
  upOfItem: Int32Array;
  downOfItem: Int32Array;
  farthest: number;
}

/** Within one iteration: what leads back to an earlier place is not followed. */
export function reachOf(graph: Graph, scene: Scene, vertex: number): Reach {
  const up = distances(graph, scene, vertex, false);
  const down = distances(graph, scene, vertex, true);
  const upOfItem = ofItems(scene, up);
  const downOfItem = ofItems(scene, down);
  let farthest = 1;
  for (const found of [upOfItem, downOfItem])
    for (const distance of found) if (distance > farthest) farthest = distance;
  return { up, down, upOfItem, downOfItem, farthest };
}

/** Steps inside of one drawn thing cost nothing, so nearer ones are looked at first (0-1 search). */
function distances(graph: Graph, scene: Scene, from: number, isDown: boolean): Int32Array {
  const { edges } = graph;
  const { start, edge } = isDown ? edges.out : edges.in;
  const ends = isDown ? edges.sink : edges.source;
  const found = new Int32Array(graph.vertices.length).fill(-1);
  found[from] = 0;
  let level = [from];
  for (let distance = 0; level.length > 0; distance++) {
    const next: number[] = [];
    for (let at = 0; at < level.length; at++) {
      const vertex = level[at]!;
      if (found[vertex] !== distance) continue;
      for (let i = start[vertex]!; i < start[vertex + 1]!; i++) {
        if (edges.isBack[edge[i]!]) continue;
        const other = ends[edge[i]!]!;
        const isSame = scene.itemOfVertex[other] === scene.itemOfVertex[vertex];
        const to = distance + Number(!isSame);
        if (found[other]! >= 0 && found[other]! <= to) continue;
        found[other] = to;
        if (isSame) level.push(other);
        else next.push(other);
      }
    }
    level = next;
  }
  return found;
}

function ofItems(scene: Scene, distance: Int32Array): Int32Array {
  const found = new Int32Array(scene.placeOf.length).fill(-1);
  for (let vertex = 0; vertex < distance.length; vertex++) {
    const at = distance[vertex]!;
    if (at < 0) continue;
    const item = scene.itemOfVertex[vertex]!;
    if (item >= 0 && (found[item]! < 0 || found[item]! > at)) found[item] = at;
  }
  return found;
}
