import { colourOf } from "../roles";
import type { GraphAnswer, ModuleInfo, SiteInfo } from "./answer";
import { type Edges, readEdges } from "./edges";
import { arrangeChildren } from "./fold";

/** What a box is: the whole picture, a module's call, a row of equal or of many siblings, or
 * tensors that belong together and have no inside. */
export type BoxKind = "scene" | "module" | "fold" | "group" | "tensor";

export interface Box {
  index: number;
  /** The same in every run of the same network: it stands in the address. */
  id: string;
  kind: BoxKind;
  /** What it is called within the box around it. */
  label: string;
  /** A module's class, or what a box that is no module holds. */
  about: string;
  extra: string;
  /** The qualified name of a module; of other boxes the name of their node. */
  name: string;
  call: number;
  parent: number;
  depth: number;
  children: number[];
  /** Its own tensors, as places in `vertices`; not those of the boxes in it. */
  vertices: number[];
  /** Equal things that it stands for: 1 but for a fold. */
  count: number;
  /** When its first tensor was seen, among all. */
  order: number;
}

/** A tensor at a site of the graph. */
export interface Vertex {
  index: number;
  site: number;
  name: string;
  /** What colours it: input, output, parameter, buffer, hidden, tensor, target or loss. */
  colour: string;
  /** Its name within its box, and what is chosen among several. */
  role: string;
  /** Where it stands in an open box: its inputs first, its outputs last. */
  port: "in" | "out" | "inner";
  box: number;
}

export interface Graph {
  signature: string;
  boxes: Box[];
  vertices: Vertex[];
  vertexOfSite: Map<number, number>;
  boxById: Map<string, number>;
  edges: Edges;
}

const MOST_PILLS = 12;

/** Repeated modules are folded, unless their sites are marked otherwise. */
export function buildGraph(
  answer: GraphAnswer,
  sites: readonly SiteInfo[],
  modules: readonly ModuleInfo[],
  markOf?: (site: number) => string,
): Graph {
  const builder = new Builder(answer, sites, modules);
  return builder.build(markOf);
}

export function newBox(boxes: Box[], part: Partial<Box> & { id: string; kind: BoxKind }): Box {
  const box: Box = {
    index: boxes.length,
    label: "",
    about: "",
    extra: "",
    name: "",
    call: 1,
    parent: 0,
    depth: 0,
    children: [],
    vertices: [],
    count: 1,
    order: Number.POSITIVE_INFINITY,
    ...part,
  };
  boxes.push(box);
  return box;
}

class Builder {
  private readonly boxes: Box[] = [];
  private readonly vertices: Vertex[] = [];
  private readonly vertexOfSite = new Map<number, number>();
  private readonly ofCall = new Map<string, number>();
  private readonly ofNode = new Map<string, number>();
  /** The modules in which a forward names tensors. */
  private readonly withNamed = new Set<number>();
  private readonly siteOf: Map<number, SiteInfo>;
  private readonly moduleOf: Map<string, ModuleInfo>;

  constructor(
    private readonly answer: GraphAnswer,
    sites: readonly SiteInfo[],
    modules: readonly ModuleInfo[],
  ) {
    this.siteOf = new Map(sites.map((site) => [site.site, site]));
    this.moduleOf = new Map(modules.map((module) => [module.name, module]));
  }

  build(markOf?: (site: number) => string): Graph {
    newBox(this.boxes, { id: "", kind: "scene", parent: -1 });
    this.addCalls();
    for (const row of this.answer.nodes) this.addVertex(row);
    this.gatherParameters();
    this.sortNamed();
    arrangeChildren(this.boxes, markOf && this.vertices.map(({ site }) => markOf(site)));
    this.measure();
    const edges = readEdges(this.answer, this.vertexOfSite, this.vertices.length);
    const boxById = new Map(this.boxes.map((box) => [box.id, box.index]));
    const { signature } = this.answer;
    const { boxes, vertices, vertexOfSite } = this;
    return { signature, boxes, vertices, vertexOfSite, boxById, edges };
  }

  private addCalls(): void {
    const places: number[] = [];
    for (const [name, call, around] of this.answer.calls) {
      const module = this.moduleOf.get(name);
      const parent = this.boxes[places[around] ?? 0]!;
      const again = call > 1 ? `#${call}` : "";
      const box = newBox(this.boxes, {
        id: nameOfCall(name, call),
        kind: "module",
        name,
        call,
        label: within(name, parent.name) + again,
        about: module?.class ?? "",
        extra: module?.extra ?? "",
        parent: parent.index,
      });
      parent.children.push(box.index);
      places.push(box.index);
      if (!this.ofCall.has(`${name}#${call}`)) this.ofCall.set(`${name}#${call}`, box.index);
    }
  }

  private addVertex([site, seenAs, node, role, kind]: GraphAnswer["nodes"][number]): void {
    const info = this.siteOf.get(site);
    if (!info || this.vertexOfSite.has(site)) return;
    const isTensor = info.tensor_class === "tensor";
    const box = this.boxOf(info, node, kind);
    const isPort = info.tensor_class === "input" || info.tensor_class === "output";
    const vertex: Vertex = {
      index: this.vertices.length,
      site,
      name: info.name,
      colour: isTensor && seenAs === "loss" ? "loss" : colourOf({ ...info, kind }),
      role: role || info.place || info.name,
      port: isPort ? (info.tensor_class === "input" ? "in" : "out") : "inner",
      box,
    };
    this.vertices.push(vertex);
    this.vertexOfSite.set(site, vertex.index);
    this.boxes[box]!.vertices.push(vertex.index);
  }

  private boxOf(info: SiteInfo, node: string, kind: string): number {
    if (info.tensor_class !== "tensor") return this.moduleBox(info);
    const isInside = node === nameOfCall(info.module, info.call);
    return isInside ? this.insideBox(info, kind) : this.nodeBox(node || info.name, kind);
  }

  private moduleBox({ module, call }: SiteInfo): number {
    const exact = this.ofCall.get(`${module}#${call}`);
    if (exact !== undefined) return exact;
    // A parameter of a module that is never called itself belongs to the nearest that is.
    for (let name = module; ; name = name.slice(0, Math.max(0, name.lastIndexOf(".")))) {
      const found = this.ofCall.get(`${name}#1`);
      if (found !== undefined) return found;
      if (name === "") return this.nodeBox(module || "(model)", "");
    }
  }

  private nodeBox(node: string, kind: string): number {
    const known = this.ofNode.get(node);
    if (known !== undefined) return known;
    const box = this.tensorBox(node, node, kind, 0);
    this.ofNode.set(node, box);
    return box;
  }

  /** A tensor that a module's forward names is in it, each in its place: others may lie between two of them. */
  private insideBox(info: SiteInfo, kind: string): number {
    const module = this.moduleBox(info);
    this.withNamed.add(module);
    return this.tensorBox(info.name, info.place, kind, module);
  }

  /** What lies between two modules is between them here too: these are then not folded into one. */
  private sortNamed(): void {
    if (this.withNamed.size === 0) return;
    this.measure();
    for (const index of this.withNamed) {
      this.boxes[index]!.children.sort((a, b) => this.boxes[a]!.order - this.boxes[b]!.order);
    }
  }

  private tensorBox(name: string, label: string, kind: string, parent: number): number {
    const box = newBox(this.boxes, {
      id: `tensor:${name}`,
      kind: "tensor",
      name,
      label,
      about: kind || "tensor",
      parent,
    });
    this.boxes[parent]!.children.push(box.index);
    return box.index;
  }

  /** Many parameters of one module are one box: a row of hundreds would hide all else. */
  private gatherParameters(): void {
    for (const box of this.boxes.slice()) {
      if (box.kind !== "module") continue;
      const inner = box.vertices.filter((index) => this.vertices[index]!.port === "inner");
      if (inner.length <= MOST_PILLS) continue;
      const held = newBox(this.boxes, {
        id: `tensor:${box.id}:parameters`,
        kind: "tensor",
        name: box.name,
        label: "parameters",
        about: `${inner.length} tensors`,
        parent: box.index,
        vertices: inner,
      });
      for (const index of inner) this.vertices[index]!.box = held.index;
      box.vertices = box.vertices.filter((index) => !inner.includes(index));
      box.children.unshift(held.index);
    }
  }

  /** Parents come before children once more, whatever was put between them. */
  private measure(): void {
    const visit = (index: number, depth: number): number => {
      const box = this.boxes[index]!;
      box.depth = depth;
      for (const vertex of box.vertices) box.order = Math.min(box.order, this.orderOf(vertex));
      for (const child of box.children) {
        this.boxes[child]!.parent = index;
        box.order = Math.min(box.order, visit(child, depth + 1));
      }
      return box.order;
    };
    visit(0, 0);
  }

  /** Parameters are seen before all else, and say nothing of when their module is called. */
  private orderOf(vertex: number): number {
    const isOwned = ["parameter", "buffer"].includes(this.vertices[vertex]!.colour);
    return isOwned ? this.vertices.length + vertex : vertex;
  }
}

function nameOfCall(module: string, call: number): string {
  return `${module || "(model)"}${call > 1 ? `#${call}` : ""}`;
}

/** A module's name within another's: `attn` of `blocks.0.attn` in `blocks.0`. */
export function within(name: string, around: string): string {
  if (name === "") return "(model)";
  return around !== "" && name.startsWith(`${around}.`) ? name.slice(around.length + 1) : name;
}
