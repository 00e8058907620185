/** The block that a module is in; none ("") of the network itself and of what only holds blocks. */
export type BlockOf = (module: string) => string;

type Children = ReadonlyMap<string, ReadonlySet<string>>;

const NUMBER = /^\d+$/;

/** By what the modules of a network are grouped: `transformer.h.3` of `transformer.h.3.attn.proj`, that is, by
 * numbered modules, wherever they are, and by what stands beside them. What holds blocks is none itself: what
 * it makes before and after them would lead out of it and back into it. */
export function blocksOf(modules: Iterable<string>): BlockOf {
  const holders = holdersOf(childrenOf(modules));
  return (module) => {
    let end = 0;
    // Up to the first part that holds none.
    while (end < module.length && holders.has(module.slice(0, end))) {
      const next = module.indexOf(".", end + 1);
      end = next < 0 ? module.length : next;
    }
    const block = module.slice(0, end);
    return holders.has(block) ? "" : block;
  };
}

function childrenOf(modules: Iterable<string>): Children {
  const children = new Map<string, Set<string>>([["", new Set()]]);
  const add = (name: string) => {
    if (children.has(name)) return;
    const parent = name.slice(0, Math.max(0, name.lastIndexOf(".")));
    children.set(name, new Set());
    add(parent);
    children.get(parent)!.add(name);
  };
  for (const module of modules) add(module);
  return children;
}

function holdersOf(children: Children): Set<string> {
  const holders = new Set(["", ...wrappers(children)]);
  for (const [name, { size }] of children) {
    const parts = name.split(".");
    const first = parts.findIndex((part) => NUMBER.test(part));
    // Numbered modules without modules of their own, such as the layers of a small head, are no blocks
    // where they are nested.
    if (size === 0 || first < 2 || first < parts.length - 1) continue;
    for (let length = 1; length < first; length++) holders.add(parts.slice(0, length).join("."));
  }
  const lists = [...holders].flatMap((holder) => [...(children.get(holder) ?? [])]);
  for (const list of lists) if (isList(children, list)) holders.add(list);
  return holders;
}

/** What is around all the rest. */
function wrappers(children: Children): string[] {
  const found: string[] = [];
  for (let around = ""; ; ) {
    const [only, ...others] = children.get(around)!;
    if (only === undefined || others.length > 0) return found;
    if (children.get(only)!.size === 0 || isList(children, only)) return found;
    found.push(only);
    around = only;
  }
}

function isList(children: Children, module: string): boolean {
  return [...children.get(module)!].some((child) => NUMBER.test(child.slice(module.length + 1)));
}
