/** What the interface says of a graph, and what of the run's sites and modules the graph needs. */

export type CallRow = readonly [module: string, call: number, around: number];
export type NodeRow = readonly [
  site: number,
  seenAs: string,
  node: string,
  role: string,
  kind: string,
];
export type Pair = readonly [source: number, sink: number];

export interface GraphAnswer {
  signature: string;
  step: number;
  kind: string;
  iterations: number;
  /** In the order in which an iteration sees them. */
  nodes: readonly NodeRow[];
  edges: Readonly<Record<string, readonly Pair[]>>;
  /** Each with the place of the one around it, or -1. */
  calls: readonly CallRow[];
}

export interface SiteInfo {
  site: number;
  name: string;
  tensor_class: string;
  module: string;
  module_class: string;
  place: string;
  call: number;
}

export interface ModuleInfo {
  name: string;
  class: string;
  parameters: number;
  extra: string;
}
