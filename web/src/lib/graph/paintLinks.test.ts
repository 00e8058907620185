import { expect, it } from "vitest";
import { buildGraph } from "./model";
import { dashOf } from "./paintLinks";
import { linear, sampleGraph } from "./sample";

function graphOf(loop: boolean) {
  const { answer, sites, modules } = sampleGraph([linear("layer")], { loop });
  return buildGraph(answer, sites, modules);
}

const camera = { x: 0, y: 0, zoom: 1 };
const DASHES = "7,4";

it("has dashes for what goes to the next iteration, wherever it is drawn, and for nothing else", () => {
  const loop = graphOf(true);
  const count = loop.edges.source.length;
  const dashed = (graph: typeof loop, edge: number) =>
    dashOf({ link: { edges: [edge] } }, { graph, camera }).join() === DASHES;
  const back = Array.from({ length: count }, (_, edge) => loop.edges.isBack[edge] === 1);
  expect(back).toContain(true);
  expect(back.map((_, edge) => dashed(loop, edge))).toEqual(back);
  const plain = graphOf(false);
  expect(Array.from(plain.edges.source, (_, edge) => dashed(plain, edge))).not.toContain(true);
});
