/** The modules of a network as a tree, with the parameters of each and of all in it. */

export interface TreeModule {
  name: string;
  class: string;
  parameters: number;
  extra: string;
}

export interface TreeRow extends TreeModule {
  label: string;
  depth: number;
  /** Its own parameters and those of everything in it. */
  total: number;
  hasChildren: boolean;
  /** Whether the search means it, and not only something in it. */
  isFound: boolean;
}

interface Totals {
  total: number;
  hasChildren: boolean;
}

const cache = new WeakMap<readonly TreeModule[], Map<string, Totals>>();

export function totalsOf(modules: readonly TreeModule[]): Map<string, Totals> {
  let found = cache.get(modules);
  if (!found) {
    found = sum(modules);
    cache.set(modules, found);
  }
  return found;
}

function sum(modules: readonly TreeModule[]): Map<string, Totals> {
  const found = new Map<string, Totals>();
  for (const { name } of modules) found.set(name, { total: 0, hasChildren: false });
  for (const { name, parameters } of modules) {
    for (let at: string | null = name; at !== null; at = parentOf(at)) {
      const known = found.get(at);
      if (!known) continue;
      known.total += parameters;
      known.hasChildren ||= at !== name;
    }
  }
  return found;
}

export function parentOf(name: string): string | null {
  if (name === "") return null;
  return name.slice(0, Math.max(0, name.lastIndexOf(".")));
}

/** The rows that are seen: what is in open modules, or what a search finds and all that is around it. */
export function treeRows(
  modules: readonly TreeModule[],
  open: ReadonlySet<string>,
  query: string,
): TreeRow[] {
  const totals = totalsOf(modules);
  const kept = query ? found(modules, query) : null;
  const isSeen = (name: string): boolean => {
    if (kept) return kept.has(name);
    for (let at = parentOf(name); at !== null; at = parentOf(at)) {
      if (totals.has(at) && !open.has(at)) return false;
    }
    return true;
  };
  const hasRoot = totals.has("");
  return modules
    .filter(({ name }) => isSeen(name))
    .map((module) => ({
      ...module,
      label: module.name === "" ? "(model)" : module.name.slice(module.name.lastIndexOf(".") + 1),
      depth: module.name === "" ? 0 : module.name.split(".").length - Number(!hasRoot),
      ...totals.get(module.name)!,
      isFound: kept?.get(module.name) ?? true,
    }));
}

/** What is shown of a search, and whether it was found itself or is around something that was. */
function found(modules: readonly TreeModule[], query: string): Map<string, boolean> {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = new Map<string, boolean>();
  for (const module of modules) {
    const text = `${module.name} ${module.class}`.toLowerCase();
    if (!words.every((word) => text.includes(word))) continue;
    kept.set(module.name, true);
    for (let at = parentOf(module.name); at !== null; at = parentOf(at)) {
      kept.set(at, kept.get(at) ?? false);
    }
  }
  return kept;
}
