import { expect, test } from "vitest";
import type { Flow } from "../../connectors/analyses";
import { blocksOf } from "../blocks";
import { type FlowSite, groupFlow } from "./group";
import { bandPath, flowLabels, layoutFlow, shareLabels } from "./layout";

const NAMES = [
  "embed:out.0",
  "blocks.0.norm:out.0",
  "blocks.0.fc:out.0",
  "blocks.0:out.0",
  "head:out.0",
  "(loss)",
];
const sites: FlowSite[] = NAMES.map((name, site) => ({
  site,
  name,
  tensor_class: name === "(loss)" ? "tensor" : "output",
  module: name.split(":")[0]!,
}));
const link = (source: number, sink: number, share: number | null, is_copy = false) => ({
  source,
  sink,
  part: share,
  share,
  is_copy,
  leads_back: false,
});
const flow: Flow = {
  step: 0,
  iteration: 0,
  origin: null,
  tensors: [1, 0.3, 0.3, 1, 1, 1].map((share, i) => ({
    sites: [i],
    norm: share,
    broken: false,
    share,
    is_end: i === 5,
  })),
  links: [
    link(0, 1, 0.3),
    link(0, 3, 0.7, true),
    link(1, 2, 0.3),
    link(2, 3, 0.3, true),
    link(3, 4, 1),
    link(4, 5, 1),
  ],
};
const blockOf = blocksOf(sites.map(({ module }) => module));
const grouped = (level: "blocks" | "modules", open: string | null = null) =>
  groupFlow(flow, (site) => sites[site], level, blockOf, open);

test("a closed block is one node, and what passes it is all that goes in", () => {
  const { nodes, paths } = grouped("blocks");
  expect(nodes.map(({ label }) => label)).toEqual(["embed", "blocks.0", "head", "(loss)"]);
  const into = paths
    .filter(({ sink }) => sink === "blocks.0")
    .reduce((sum, { share }) => sum + share, 0);
  expect(into).toBeCloseTo(1);
});

test("what holds blocks is no block, so that all leads down", () => {
  const names = [
    "t.embed:out.0",
    "t.drop:in.0",
    "t.h.0.fc:out.0",
    "t.h.0:out.0",
    "t:out.0",
    "(loss)",
  ];
  const nested = names.map((name, site) => ({
    site,
    name,
    tensor_class: name === "(loss)" ? "tensor" : name.endsWith("in.0") ? "input" : "output",
    module: name.split(":")[0]!,
  }));
  const blocks = blocksOf(nested.map(({ module }) => module));
  const chain = { ...flow, links: [0, 1, 2, 3, 4].map((source) => link(source, source + 1, 1)) };
  const { nodes, paths } = groupFlow(chain, (site) => nested[site], "blocks", blocks, null);
  expect(nodes.map(({ label }) => label)).toEqual([
    "t.embed",
    "into t.drop",
    "t.h.0",
    "t",
    "(loss)",
  ]);
  const place = (key: string) => nodes.findIndex((node) => node.key === key);
  for (const { source, sink } of paths) expect(place(sink)).toBe(place(source) + 1);
});

test("an open block shows its skip connection and its sum", () => {
  for (const { nodes, paths } of [grouped("modules"), grouped("blocks", "blocks.0")]) {
    expect(nodes.map(({ label }) => label)).toContain("+ blocks.0");
    const skip = paths.find(({ isSkip }) => isSkip)!;
    expect([skip.sink, skip.share, skip.isExact]).toEqual(["blocks.0:out.0", 0.7, false]);
    expect(nodes.find(({ key }) => key === skip.source)!.label).toBe("embed");
    expect(paths.filter(({ isSkip }) => isSkip).length).toBe(1);
  }
});

test("what is not known leads to its own end", () => {
  const unknown = { ...flow, links: [link(0, 1, null), link(0, 3, null), ...flow.links.slice(2)] };
  const { nodes, paths } = groupFlow(unknown, (site) => sites[site], "modules", blockOf, null);
  const end = nodes.find(({ kind }) => kind === "unavailable")!;
  expect(paths.filter(({ sink }) => sink === end.key).map(({ share }) => share)).toEqual([1]);
});

test("rows go down, and every row is as wide as the whole", () => {
  const layout = layoutFlow(grouped("modules"), { left: 100, width: 400, height: 300 });
  const rows = layout.nodes.map(({ row }) => row);
  expect(rows).toEqual([0, 1, 2, 3, 4, 5]);
  expect(layout.nodes[0]!.width).toBeCloseTo(layout.nodes[5]!.width);
  const skip = layout.paths.find(({ path }) => path.isSkip)!;
  expect(skip.bands.length).toBe(3);
  for (const { bands } of layout.paths) {
    for (const { top, bottom, from, to } of bands) {
      expect(bottom).toBeGreaterThan(top);
      expect(from[1] - from[0]).toBeCloseTo(to[1] - to[0]);
    }
  }
  expect(bandPath(skip.bands[0]!)).toMatch(/^M[\d.]+ [\d.]+C.*Z$/);
});

test("paths that fork or meet say their shares where there is room", () => {
  const said = (width: number) => {
    const layout = layoutFlow(grouped("modules"), { left: 0, width, height: 600 });
    return shareLabels(layout, (share) => share.toFixed(1)).map(({ text }) => text);
  };
  expect(said(600).sort()).toEqual(["0.3", "0.3", "0.7"]);
  expect(said(100)).not.toContain("0.3");
});

test("a name that stands on a band is known to, and the band's share stands beside it", () => {
  const node = (key: string, order: number, share: number) =>
    ({
      key,
      label: key,
      kind: "module",
      site: key,
      block: null,
      share,
      norm: 1,
      isBroken: false,
      order,
    }) as const;
  const path = (source: string) =>
    ({ source, sink: "sum", share: 0.5, isSkip: false, isExact: true, isUnknown: false }) as const;
  const two = {
    nodes: [node("wte_embedding", 0, 0.5), node("wpe_embedding", 1, 0.5), node("sum", 2, 1)],
    paths: [path("wte_embedding"), path("wpe_embedding")],
  };
  const layout = layoutFlow(two, { left: 100, width: 500, height: 60 });
  const names = flowLabels(layout, 100, 600, (text) => text, 7);
  const name = names.find(({ isInside }) => isInside)!;
  const end = name.x + name.text.length * 7;
  const shares = shareLabels(layout, () => "50.0 %", names, 7);
  expect(shares.length).toBe(2);
  for (const { x } of shares) expect(x - 22 > end || x + 22 < name.x).toBe(true);
});

test("fills a large screen with few rows", () => {
  const heights = [600, 1200].map(
    (height) => layoutFlow(grouped("modules"), { left: 100, width: 400, height }).height,
  );
  expect(heights[1]! / heights[0]!).toBeGreaterThan(1.5);
});
