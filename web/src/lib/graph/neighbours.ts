import type { GraphAnswer } from "./answer";

/** The sites that each site was made from, and those that were made from it, nearest in the program first. */
export interface Neighbours {
  sources: ReadonlyMap<number, readonly number[]>;
  sinks: ReadonlyMap<number, readonly number[]>;
}

export function neighboursOf({ edges, nodes }: Pick<GraphAnswer, "edges" | "nodes">): Neighbours {
  const place = new Map(nodes.map(([site], index) => [site, index]));
  const sources = new Map<number, Set<number>>();
  const sinks = new Map<number, Set<number>>();
  const put = (into: Map<number, Set<number>>, site: number, other: number) => {
    const known = into.get(site);
    if (known) known.add(other);
    else into.set(site, new Set([other]));
  };
  for (const [source, sink] of Object.values(edges).flat()) {
    put(sources, sink, source);
    put(sinks, source, sink);
  }
  const ordered = (all: Map<number, Set<number>>, sign: number) =>
    new Map(
      [...all].map(([site, others]) => [
        site,
        [...others].sort((a, b) => sign * ((place.get(a) ?? 0) - (place.get(b) ?? 0))),
      ]),
    );
  return { sources: ordered(sources, -1), sinks: ordered(sinks, 1) };
}
