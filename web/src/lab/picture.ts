import type { Message } from "./frames";

/** A layer as the model has it. */
export interface LayerInfo {
  name: string;
  shape: number[];
  size: number;
  kind: "input" | "hidden" | "output";
  module_class: string;
  is_real: boolean;
  axes: string[];
  ways: string[];
  usual: string;
}

export interface Model {
  name: string;
  layers: LayerInfo[];
  chosen: string[];
  samples: number;
  has_loss: boolean;
  tokens: string[];
  labels: string[];
  note: string;
  can_edit: boolean;
  has_activation_flow: boolean;
  steps: number[];
}

/** A layer as one run of the model gave it. */
export interface LayerState {
  name: string;
  shape: number[];
  by: string;
  labels: string[];
  values: Float32Array;
  grads: Float32Array | null;
  nodes: Int32Array;
  pinned: Int32Array | null;
}

/** Along one dimension: cell `o` of the sink reads `scale * o + low` to `scale * o + high`. */
export interface Span {
  scale: number;
  low: number;
  high: number;
}

export interface Pair {
  source: string;
  sink: string;
  from: Int32Array;
  to: Int32Array;
  positive: Float32Array;
  negative: Float32Array;
  aroundPositive: Float32Array;
  aroundNegative: Float32Array;
  count: number;
  dropped: number;
  residual: number | null;
  note: string;
  isExact: boolean;
  reach: Span[] | null;
}

export interface Picture {
  objective: number;
  objectiveName: string;
  target: { values: Float32Array; shape: number[] } | null;
  layers: LayerState[];
  pairs: Pair[];
  /** Why there are no flows between some layers. */
  problems: string[];
}

export function readLayers({ header, arrays }: Message): Picture {
  const at = (place: number) => arrays[place] as Float32Array;
  return {
    objective: Number(header.objective),
    objectiveName: header.objective_name,
    target:
      header.target === null ? null : { values: at(header.target), shape: header.target_shape },
    layers: header.layers.map((each: Message["header"]) => ({
      name: each.name,
      shape: each.shape,
      by: each.by,
      labels: each.labels,
      values: at(each.values),
      grads: each.grads === null ? null : at(each.grads),
      nodes: arrays[each.nodes] as Int32Array,
      pinned: each.pinned === null ? null : (arrays[each.pinned] as Int32Array),
    })),
    pairs: [],
    problems: [],
  };
}

export function readLinks({ header, arrays }: Message): Pair {
  const [from, to, positive, negative, aroundPositive, aroundNegative] = arrays;
  return {
    source: header.source,
    sink: header.sink,
    from: from as Int32Array,
    to: to as Int32Array,
    positive: positive as Float32Array,
    negative: negative as Float32Array,
    aroundPositive: aroundPositive as Float32Array,
    aroundNegative: aroundNegative as Float32Array,
    count: header.count,
    dropped: header.dropped,
    // NaN is a word in JSON.
    residual: header.residual === null ? null : Number(header.residual),
    note: header.note,
    isExact: header.is_exact,
    reach: header.reach,
  };
}

/** Whether two pictures have the same layers in the same groups, so that they can be compared. */
export function areAlike(one: Picture, other: Picture): boolean {
  return (
    one.layers.length === other.layers.length &&
    one.layers.every(({ name, nodes }, n) => {
      const same = other.layers[n]!;
      const isSameSize = name === same.name && nodes.length === same.nodes.length;
      return isSameSize && nodes.every((node, cell) => node === same.nodes[cell]);
    })
  );
}

/** Why there is nothing to draw between the layers; empty where there may be. */
export function whyNoFlows({ layers, pairs, problems }: Picture): string {
  const grads = layers.flatMap((layer) => (layer.grads ? [layer.grads] : []));
  if (grads.some((each) => !each.every(Number.isFinite))) {
    return "Gradients are NaN or infinite here, so there are no flows to draw: the maps show where.";
  }
  if (grads.length < 2) return "Flows need two layers with gradients: choose more in Layers.";
  if (problems.length > 0) return problems[0]!;
  const isZero = grads.slice(0, -1).every((each) => each.every((value) => value === 0));
  if (isZero) return "No gradient reaches these layers: all of it is 0.";
  return pairs.length > 0 ? "No flow passes the threshold: choose a lower one." : "";
}

/** What changed from one picture to another: values, gradients and links. */
export function difference(now: Picture, before: Picture): Picture {
  return {
    ...now,
    layers: now.layers.map((layer, n) => {
      const old = before.layers[n]!;
      return {
        ...layer,
        values: minus(layer.values, old.values),
        grads: layer.grads && old.grads ? minus(layer.grads, old.grads) : null,
      };
    }),
    pairs: now.pairs.map((pair) => {
      const old = before.pairs.find(
        ({ source, sink }) => source === pair.source && sink === pair.sink,
      );
      return old ? linksApart(pair, old) : pair;
    }),
  };
}

function minus(one: Float32Array, other: Float32Array): Float32Array {
  return one.map((value, n) => value - other[n]!);
}

function linksApart(now: Pair, before: Pair): Pair {
  const net = new Map<string, number>();
  const add = (pair: Pair, sign: number) => {
    for (let n = 0; n < pair.from.length; n++) {
      const key = `${pair.from[n]},${pair.to[n]}`;
      net.set(key, (net.get(key) ?? 0) + sign * (pair.positive[n]! + pair.negative[n]!));
    }
  };
  add(now, 1);
  add(before, -1);
  const rows = [...net].filter(([, value]) => value !== 0);
  const ends = rows.map(([key]) => key.split(",").map(Number) as [number, number]);
  const around = now.aroundPositive.map(
    (value, n) =>
      value + now.aroundNegative[n]! - before.aroundPositive[n]! - before.aroundNegative[n]!,
  );
  return {
    ...now,
    from: Int32Array.from(ends, ([from]) => from),
    to: Int32Array.from(ends, ([, to]) => to),
    positive: Float32Array.from(rows, ([, value]) => Math.max(0, value)),
    negative: Float32Array.from(rows, ([, value]) => Math.min(0, value)),
    aroundPositive: around.map((value) => Math.max(0, value)),
    aroundNegative: around.map((value) => Math.min(0, value)),
  };
}
