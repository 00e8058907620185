import type { CallRow, GraphAnswer, ModuleInfo, NodeRow, Pair, SiteInfo } from "./answer";

/** For tests: a network told as nested modules, each with a parameter where it has a class `Linear`. */
export interface Sample {
  name: string;
  class: string;
  extra?: string;
  inside?: Sample[];
  /** The input is added to the output, past all that is inside. */
  skip?: boolean;
}

export interface SampleGraph {
  answer: GraphAnswer;
  sites: SiteInfo[];
  modules: ModuleInfo[];
  number: (name: string) => number;
}

export function block(name: string, skip = true): Sample {
  const inside = [
    { name: "norm", class: "LayerNorm" },
    { name: "attn", class: "Attention", inside: [linear("qkv"), linear("out")] },
  ];
  return { name, class: "Block", inside, skip };
}

const TAP = "tap";

/** No module, but what the forward around it names there. */
export function tap(name: string): Sample {
  return { name, class: TAP };
}

export function linear(name: string, extra = "8, 8"): Sample {
  return { name, class: "Linear", extra };
}

export interface Rest {
  /** The model is given a memory that it made in the iteration before. */
  loop?: boolean;
  /** It is given so many tensors, and the first of them once more at the end. */
  twice?: number;
}

/** x → model(inside) → loss, with a target. */
export function sampleGraph(inside: Sample[], rest: Rest = {}): SampleGraph {
  const made = new Maker();
  const x = made.tensor("x", "input");
  const memory = rest.loop ? made.tensor("memory", "hidden") : null;
  const inputs = memory === null ? [x] : [x, memory];
  for (let i = 0; i < (rest.twice ?? 0); i++) inputs.push(made.tensor(`more ${i}`, "input"));
  const out = made.module({ name: "", class: "Net", inside }, "", inputs, -1);
  const target = made.tensor("target", "target");
  const loss = made.tensor("loss", "loss");
  made.edge(out, loss);
  made.edge(target, loss);
  if (memory !== null) made.edge(out, memory);
  if (rest.twice !== undefined) made.tieInputs();
  return made.finish();
}

class Maker {
  private readonly sites: SiteInfo[] = [];
  private readonly nodes: NodeRow[] = [];
  private readonly pairs: Pair[] = [];
  private readonly calls: CallRow[] = [];
  private readonly modules: ModuleInfo[] = [];

  tensor(name: string, kind: string): number {
    return this.site(
      { name, tensor_class: "tensor", module: "", module_class: "", place: name },
      name,
      kind,
    );
  }

  edge(source: number, sink: number): void {
    this.pairs.push([source, sink]);
  }

  /** The first input of the model is its last one too. */
  tieInputs(): void {
    const ins = this.sites.filter(({ name }) => name.startsWith("(model):in."));
    this.edge(ins[0]!.site, ins.at(-1)!.site);
  }

  /** Adds a module and what is in it, one after another; gives its output. */
  module(sample: Sample, around: string, inputs: number[], parent: number): number {
    const name = around ? `${around}.${sample.name}` : sample.name;
    const place = this.calls.length;
    this.calls.push([name, 1, parent]);
    const isLinear = sample.class === "Linear";
    this.modules.push({
      name,
      class: sample.class,
      parameters: isLinear ? 64 : 0,
      extra: sample.extra ?? "",
    });
    const base = { module: name, module_class: sample.class };
    const shown = name || "(model)";
    const ins = inputs.map((from, i) => {
      const site = { ...base, name: `${shown}:in.${i}`, tensor_class: "input", place: `in.${i}` };
      const at = this.site(site, shown, "");
      this.edge(from, at);
      return at;
    });
    let last = ins;
    for (const child of sample.inside ?? []) {
      if (child.class !== TAP) last = [this.module(child, name, last, place)];
      else {
        const tapped = { ...base, name: `${shown}:${child.name}`, tensor_class: "tensor" };
        const at = this.site({ ...tapped, place: child.name }, shown, "");
        for (const from of last) this.edge(from, at);
        last = [at];
      }
    }
    const weight = { ...base, name: `${name}.weight`, tensor_class: "parameter", place: "weight" };
    const parameters = isLinear ? [this.site(weight, shown, "")] : [];
    const out = { ...base, name: `${shown}:out.0`, tensor_class: "output", place: "out.0" };
    const at = this.site(out, shown, "");
    for (const from of [...last, ...parameters, ...(sample.skip ? ins : [])]) this.edge(from, at);
    return at;
  }

  finish(): SampleGraph {
    const { sites, modules } = this;
    const answer: GraphAnswer = {
      signature: "sample",
      step: 0,
      kind: "train",
      iterations: 1,
      nodes: this.nodes,
      edges: { autograd: this.pairs, manual: [], data: [] },
      calls: this.calls,
    };
    const number = (name: string) => sites.findIndex((site) => site.name === name);
    return { answer, sites, modules, number };
  }

  private site(info: Omit<SiteInfo, "site" | "call">, node: string, kind: string): number {
    const site = this.sites.length;
    this.sites.push({ ...info, site, call: 1 });
    this.nodes.push([site, info.tensor_class, node, info.place, kind]);
    return site;
  }
}
