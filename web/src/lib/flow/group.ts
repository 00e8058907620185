import type { Flow } from "../../connectors/analyses";
import type { BlockOf } from "../blocks";

/** Tensors of one module, one block, or one alone: what stands in the picture of the flow. */
export interface FlowNode {
  key: string;
  label: string;
  kind: "module" | "sum" | "loss" | "tensor" | "unavailable" | "next";
  /** The name of the site that stands for it; none for what is no tensor. */
  site: string | null;
  /** The block that it stands for, if it is closed. */
  block: string | null;
  share: number;
  norm: number | null;
  isBroken: boolean;
  /** Where it is in the network. */
  order: number;
}

export interface FlowPath {
  source: string;
  sink: string;
  share: number;
  /** Whether it is a skip connection: straight into a sum, past what else its source is used for. */
  isSkip: boolean;
  /** Whether its share follows from what was recorded, or is estimated. */
  isExact: boolean;
  isUnknown: boolean;
}

export interface GroupedFlow {
  nodes: FlowNode[];
  paths: FlowPath[];
}

export interface FlowSite {
  site: number;
  name: string;
  tensor_class: string;
  module: string;
}

export type Level = "blocks" | "modules";

const UNAVAILABLE = "(unavailable)";
const NEXT = "(next iteration)";
/** Less than this is rounding. */
const NOTHING = 1e-9;

/** The flow between blocks, of which one can be open, or between all modules. */
export function groupFlow(
  flow: Flow,
  siteOf: (site: number) => FlowSite | undefined,
  level: Level,
  blockOf: BlockOf,
  open: string | null,
): GroupedFlow {
  const sums = new Set(flow.links.filter(({ is_copy }) => is_copy).map(({ sink }) => sink));
  const uses = new Array<number>(flow.tensors.length).fill(0);
  for (const { source } of flow.links) uses[source]!++;
  const nodes = new Map<string, FlowNode>();
  const keys = flow.tensors.map((tensor, place) => {
    const site = siteOf(tensor.sites[0]!);
    const node = describe(site, place, tensor.is_end, sums.has(place), level, blockOf, open);
    const held = nodes.get(node.key) ?? node;
    if (held === node) nodes.set(node.key, node);
    held.share = Math.max(held.share, tensor.share);
    held.isBroken ||= tensor.broken;
    // What leaves a block last speaks for it.
    if (node.block === null || site?.tensor_class === "output") {
      held.site = site?.name ?? null;
      held.norm = tensor.norm;
    }
    return node.key;
  });
  const paths = new Map<string, FlowPath>();
  const add = (path: FlowPath) => {
    const name = JSON.stringify([path.source, path.sink, path.isSkip]);
    const held = paths.get(name);
    if (!held) paths.set(name, path);
    else {
      held.share += path.share;
      held.isExact &&= path.isExact;
    }
  };
  const unknown = new Map<number, number>();
  for (const { source, sink, share, is_copy, leads_back } of flow.links) {
    if (share === null) unknown.set(source, flow.tensors[source]!.share);
    if (share === null || share < NOTHING) continue;
    const isSkip = is_copy && uses[source]! > 1;
    const end = leads_back ? NEXT : keys[sink]!;
    if (keys[source] === end) continue;
    add({
      source: keys[source]!,
      sink: end,
      share,
      isSkip,
      isExact: uses[source] === 1,
      isUnknown: false,
    });
  }
  for (const [source, share] of unknown) {
    if (share < NOTHING) continue;
    add({
      source: keys[source]!,
      sink: UNAVAILABLE,
      share,
      isSkip: false,
      isExact: false,
      isUnknown: true,
    });
  }
  const found = [...paths.values()];
  addEnd(nodes, found, UNAVAILABLE, "unavailable");
  addEnd(nodes, found, NEXT, "next");
  const isPassed = new Set(found.flatMap(({ source, sink }) => [source, sink]));
  const shown = [...nodes.values()].filter(({ key }) => isPassed.has(key));
  for (const node of shown) node.share = Math.min(node.share, 1);
  return { nodes: shown.sort((a, b) => a.order - b.order), paths: found };
}

function addEnd(
  nodes: Map<string, FlowNode>,
  paths: FlowPath[],
  key: string,
  kind: "unavailable" | "next",
): void {
  const share = paths.filter(({ sink }) => sink === key).reduce((sum, path) => sum + path.share, 0);
  if (share === 0) return;
  const label = kind === "next" ? "next iteration" : "not recorded";
  nodes.set(key, {
    key,
    label,
    kind,
    site: null,
    block: null,
    share,
    norm: null,
    isBroken: false,
    order: Number.MAX_SAFE_INTEGER,
  });
}

function describe(
  site: FlowSite | undefined,
  order: number,
  isEnd: boolean,
  isSum: boolean,
  level: Level,
  blockOf: BlockOf,
  open: string | null,
): FlowNode {
  const name = site?.name ?? `tensor ${order}`;
  const node = {
    key: name,
    label: name,
    site: name,
    block: null,
    share: 0,
    norm: null,
    isBroken: false,
    order,
  };
  if (isEnd) return { ...node, kind: "loss" };
  if (!site || site.tensor_class === "tensor" || site.tensor_class === "parameter")
    return { ...node, kind: "tensor" };
  // What is made between modules is first seen as the input of the next one.
  const isBetween = site.tensor_class === "input";
  const around = isBetween
    ? site.module.slice(0, Math.max(0, site.module.lastIndexOf(".")))
    : site.module;
  const block = blockOf(around);
  if (level === "blocks" && block !== "" && block !== open) {
    const isAlone = block === site.module && !isSum;
    return { ...node, key: block, label: block, kind: "module", block: isAlone ? null : block };
  }
  if (isBetween)
    return {
      ...node,
      label: `${isSum ? "+ " : ""}into ${site.module || "the model"}`,
      kind: isSum ? "sum" : "tensor",
    };
  return {
    ...node,
    label: isSum ? `+ ${site.module}` : site.module || "(model)",
    kind: isSum ? "sum" : "module",
  };
}
