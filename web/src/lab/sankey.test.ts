import { expect, test } from "vitest";
import { difference, type Pair, type Picture } from "./picture";
import { chosenFlows, edgesAt, layOut, litBy } from "./sankey";

function pair(flows: [number, number, number][], around: number[] = [0, 0]): Pair {
  return {
    source: "a",
    sink: "b",
    from: Int32Array.from(flows, ([from]) => from),
    to: Int32Array.from(flows, ([, to]) => to),
    positive: Float32Array.from(flows, ([, , value]) => Math.max(0, value)),
    negative: Float32Array.from(flows, ([, , value]) => Math.min(0, value)),
    aroundPositive: Float32Array.from(around),
    aroundNegative: new Float32Array(around.length),
    count: flows.length,
    dropped: 0,
    residual: 0,
    note: "",
    isExact: true,
    reach: null,
  };
}

function picture(own: Pair): Picture {
  const layer = (name: string) => ({
    name,
    shape: [2],
    by: "cell",
    labels: ["0", "1"],
    values: new Float32Array(2),
    grads: new Float32Array(2),
    nodes: Int32Array.from([0, 1]),
    pinned: null,
  });
  return {
    objective: 0,
    objectiveName: "",
    target: null,
    layers: [layer("a"), layer("b")],
    pairs: [own],
    problems: [],
  };
}

const own = pair([
  [0, 0, 3],
  [0, 1, -1],
  [1, 1, 0.5],
]);

test("thresholds leave the largest links", () => {
  const count = (kind: "top" | "share" | "value", amount: number) =>
    chosenFlows(own, { kind, amount }).shown.length;
  expect(count("top", 2)).toBe(2);
  expect(count("value", 0.6)).toBe(2);
  expect(count("share", 50)).toBe(1);
  expect(count("share", 0)).toBe(3);
});

test("bands fill their nodes at both ends", () => {
  const layout = layOut(picture(own), { kind: "top", amount: 99 }, 400, 100);
  for (const node of layout.nodes.filter(({ column }) => column === 0)) {
    const widths = layout.links.filter(({ from }) => from === node.node);
    const sum = widths.reduce((total, { width0 }) => total + width0, 0);
    expect(sum).toBeCloseTo(node.height, 4);
  }
  const bottom = Math.max(...layout.nodes.map(({ y, height }) => y + height));
  expect(bottom).toBeLessThanOrEqual(100.001);
});

test("what goes around a layer is a node of its own", () => {
  const layout = layOut(picture(pair([[0, 0, 1]], [0, 2])), { kind: "top", amount: 9 }, 400, 100);
  expect(layout.nodes.map(({ label }) => label)).toContain("around b");
});

test("a band is found where it is drawn", () => {
  const link = layOut(picture(own), { kind: "top", amount: 9 }, 400, 100).links[0]!;
  expect(edgesAt(link, link.x0)![0]).toBeCloseTo(link.y0, 3);
  expect(edgesAt(link, link.x1)![1]).toBeCloseTo(link.y1 + link.width1, 3);
  expect(edgesAt(link, link.x1 + 1)).toBeNull();
});

test("a node lights what leads to it and what it leads to", () => {
  const layout = layOut(picture(own), { kind: "top", amount: 9 }, 400, 100);
  const lit = litBy(layout, picture(own).pairs, 1, 1);
  expect([...lit.nodes].sort()).toEqual(["0/0", "0/1", "1/1"]);
  expect(lit.links.size).toBe(2);
});

test("the difference of two pictures is that of their links", () => {
  const before = picture(pair([[0, 0, 1]]));
  const apart = difference(picture(own), before).pairs[0]!;
  const found = Array.from(apart.from, (from, n) => [
    from,
    apart.to[n],
    apart.positive[n]! + apart.negative[n]!,
  ]);
  expect(found).toContainEqual([0, 0, 2]);
  expect(found).toContainEqual([0, 1, -1]);
});
