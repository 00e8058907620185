import type { CallRow, GraphAnswer, ModuleInfo, NodeRow, Pair, SiteInfo } from "./answer";
import { KINDS } from "./edges";

/** Which of two runs has something. */
export type Owner = "both" | "one" | "other";

/** The graph of a run, and what is needed to draw it. */
export interface RunGraph {
  answer: GraphAnswer;
  sites: readonly SiteInfo[];
  modules: readonly ModuleInfo[];
}

/** The graphs of two runs as one: the same by name is the same. */
export interface Union extends RunGraph {
  ownerOfSite: ReadonlyMap<number, Owner>;
  /** By `pairKey`. */
  ownerOfPair: ReadonlyMap<number, Owner>;
  /** Modules of both that are not the same: what each is. */
  changed: ReadonlyMap<string, readonly [one: string, other: string]>;
}

/** A pair of sites as one number: a text for each of some ten thousand edges takes longer than all the rest. */
export const pairKey = (source: number, sink: number): number => source * 2 ** 26 + sink;

export function unionOf(one: RunGraph, other: RunGraph): Union {
  const renumbered = renumber(one.sites, other);
  const ownNodes = nodesBySite(one.answer);
  const theirNodes = nodesBySite(renumbered.answer);
  const order = merged([...ownNodes.keys()], [...theirNodes.keys()]);
  const ownerOfPair = owners(pairsOf(one.answer), pairsOf(renumbered.answer));
  return {
    answer: {
      ...one.answer,
      signature: `${one.answer.signature}+${other.answer.signature}`,
      iterations: Math.max(one.answer.iterations, other.answer.iterations),
      nodes: order.map((site) => (ownNodes.get(site) ?? theirNodes.get(site))!),
      edges: mergedEdges(one.answer, renumbered.answer),
      calls: mergedCalls(one.answer.calls, other.answer.calls),
    },
    sites: [...one.sites, ...renumbered.added],
    modules: [
      ...new Map([...other.modules, ...one.modules].map((each) => [each.name, each])).values(),
    ],
    ownerOfSite: owners(ownNodes.keys(), theirNodes.keys()),
    ownerOfPair,
    changed: changedModules(one.modules, other.modules),
  };
}

/** The other run's graph with the numbers that sites of the same name have in one, and new ones for the rest. */
function renumber(own: readonly SiteInfo[], { answer, sites }: RunGraph) {
  const numberOf = new Map(own.map(({ name, site }) => [name, site]));
  let next = own.reduce((most, { site }) => Math.max(most, site), -1) + 1;
  const added: SiteInfo[] = [];
  const renamed = new Map<number, number>();
  for (const info of sites) {
    const known = numberOf.get(info.name);
    renamed.set(info.site, known ?? next);
    if (known === undefined) added.push({ ...info, site: next++ });
  }
  const numbered = (site: number) => renamed.get(site) ?? -1;
  const nodes = answer.nodes.map(([site, ...rest]): NodeRow => [numbered(site), ...rest]);
  const edges = Object.fromEntries(
    Object.entries(answer.edges).map(([kind, pairs]) => [
      kind,
      pairs.map(([source, sink]): Pair => [numbered(source), numbered(sink)]),
    ]),
  );
  return { added, answer: { ...answer, nodes, edges } };
}

function nodesBySite({ nodes }: GraphAnswer): Map<number, NodeRow> {
  return new Map(nodes.map((row) => [row[0], row]));
}

function* pairsOf({ edges }: GraphAnswer): Iterable<number> {
  for (const pairs of Object.values(edges)) for (const [from, to] of pairs) yield pairKey(from, to);
}

function owners<K>(one: Iterable<K>, other: Iterable<K>): Map<K, Owner> {
  const found = new Map<K, Owner>();
  for (const key of one) found.set(key, "one");
  for (const key of other)
    found.set(key, found.has(key) && found.get(key) !== "other" ? "both" : "other");
  return found;
}

/** Both lists as one in which each keeps its order: what only the other has comes after what it follows there. */
export function merged<K>(one: readonly K[], other: readonly K[]): K[] {
  const own = new Set(one);
  const first: K[] = [];
  const after = new Map<K, K[]>();
  let place = first;
  for (const key of other) {
    if (own.has(key)) {
      place = after.get(key) ?? [];
      after.set(key, place);
    } else place.push(key);
  }
  return [...first, ...one.flatMap((key) => [key, ...(after.get(key) ?? [])])];
}

/** Each pair once, as one run knows it, or else as the other does. */
function mergedEdges(one: GraphAnswer, other: GraphAnswer): Record<string, Pair[]> {
  const seen = new Set<number>();
  const found: Record<string, Pair[]> = {};
  for (const { edges } of [one, other]) {
    const mine = new Set<number>();
    for (const kind of KINDS) {
      found[kind] ??= [];
      for (const pair of edges[kind] ?? []) {
        const key = pairKey(...pair);
        if (seen.has(key)) continue;
        mine.add(key);
        found[kind].push(pair);
      }
    }
    for (const key of mine) seen.add(key);
  }
  return found;
}

const callKey = ([module, call]: CallRow): string => `${module}#${call}`;

function mergedCalls(one: readonly CallRow[], other: readonly CallRow[]): CallRow[] {
  const around = new Map<string, string>();
  const rows = new Map<string, CallRow>();
  for (const calls of [other, one]) {
    for (const row of calls) {
      rows.set(callKey(row), row);
      around.set(callKey(row), row[2] < 0 ? "" : callKey(calls[row[2]]!));
    }
  }
  const order = merged([...new Set(one.map(callKey))], [...new Set(other.map(callKey))]);
  const placeOf = new Map(order.map((key, place) => [key, place]));
  return order.map((key) => {
    const [module, call] = rows.get(key)!;
    return [module, call, placeOf.get(around.get(key)!) ?? -1];
  });
}

function changedModules(one: readonly ModuleInfo[], other: readonly ModuleInfo[]) {
  const own = new Map(one.map((module) => [module.name, textOf(module)]));
  const found = new Map<string, readonly [string, string]>();
  for (const module of other) {
    const [before, after] = [own.get(module.name), textOf(module)];
    if (before !== undefined && before !== after) found.set(module.name, [before, after]);
  }
  return found;
}

const textOf = (module: ModuleInfo): string => `${module.class}(${module.extra})`;
