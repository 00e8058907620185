import type { Connector } from "../connectors/connector";
import type { GraphAnswer } from "../lib/graph/answer";
import { buildGraph, type Graph } from "../lib/graph/model";
import { type Item, isVertexItem } from "../lib/graph/nesting";
import { openAround } from "../lib/graph/open";
import { ALL_PRESENT } from "../lib/graph/presence";
import { placedAs } from "../lib/graph/scene";
import { type Sides, sidesOf } from "../lib/graph/sides";
import { unionOf } from "../lib/graph/union";
import type { ItemValues } from "../lib/graph/values";
import type { Frame } from "./frame.svelte";
import { GraphPicture } from "./graphPicture.svelte";
import type { OtherRun } from "./others.svelte";
import { Resource } from "./resource.svelte";
import type { OpenRun } from "./run.svelte";
import { selection } from "./selection.svelte";

const MOST_OPENED = 40;

/** The graphs of two runs; null for one that has none. */
type Pair = readonly [one: GraphAnswer | null, other: GraphAnswer | null];

/** The graphs of two runs as one picture, in which what only one of them has is marked. */
export class UnionGraph extends GraphPicture {
  readonly answers = new Resource<Pair>({ keep: true, gapMs: 3000 });
  readonly values: ItemValues = new Map();
  readonly title = "";
  readonly isShare = false;
  readonly scale = null;
  readonly presence = ALL_PRESENT;

  /** Which of all that differs is looked at. */
  private place = $state.raw<{ graph: Graph; order: number[]; at: number } | null>(null);
  readonly difference = $derived.by(() => {
    const { graph, place } = this;
    if (!graph || place?.graph !== graph) return null;
    const { name, label } = graph.boxes[place.order[place.at]!]!;
    return { name: name || label, number: place.at + 1, count: place.order.length };
  });

  private readonly union = $derived.by(() => {
    const [one, other] = this.answers.data ?? [null, null];
    const { detail } = this.run;
    if (!one || !other || !detail) return null;
    const theirs = this.other();
    return unionOf(
      { answer: one, sites: this.run.sites, modules: detail.modules },
      { answer: other, sites: [...theirs.siteByName.values()], modules: theirs.detail.modules },
    );
  });
  readonly graph = $derived.by(() => {
    const { union } = this;
    return (
      union &&
      buildGraph(union.answer, union.sites, union.modules, (site) => union.ownerOfSite.get(site)!)
    );
  });
  readonly sides = $derived(this.graph && this.union && sidesOf(this.graph, this.union));
  /** The runs that have no graph, by name, once that is known. */
  readonly without = $derived.by(() => {
    const names = [this.run.id, this.other().id];
    return this.answers.data ? names.filter((_, i) => this.answers.data![i] === null) : [];
  });

  constructor(
    private readonly connector: Connector,
    private readonly run: OpenRun,
    private readonly other: () => OtherRun,
    frame: Frame,
  ) {
    super(frame);
  }

  /** To be called from effects: the graphs of these steps, where a run has one. */
  load(steps: readonly [one: number | null, other: number | null]): void {
    const { run } = this;
    const { id } = this.other();
    const ask = (signal: AbortSignal) => (of: string, step: number | null) =>
      step === null ? null : this.connector.graph(of, step, signal);
    this.answers.load(
      `${id}/${run.graph}/${steps}`,
      0,
      (signal) => Promise.all([ask(signal)(run.id, steps[0]), ask(signal)(id, steps[1])]),
      id,
    );
  }

  /** Opens what is around all that differs, as far as that can be overlooked, and goes to the first of it; where
   * that is so already, to the next, or back. */
  toDifference(by: 1 | -1): Item | null {
    const { graph, sides } = this;
    if (!graph || !sides) return null;
    const isBegun = this.place?.graph === graph;
    const order = isBegun ? this.place!.order : this.openDifferences(graph, sides);
    if (order.length === 0) return null;
    const at = isBegun ? (this.place!.at + by + order.length) % order.length : 0;
    const box = order[at]!;
    this.place = { graph, order, at };
    const toggled = openAround(graph, selection.current.toggled, box);
    selection.change({ toggled, inside: "" });
    return box;
  }

  /** The boxes that differ, as they follow each other in the picture. */
  private openDifferences(graph: Graph, sides: Sides): number[] {
    const boxes = sides.differing();
    const toggled = boxes
      .slice(0, MOST_OPENED)
      .reduce((open, box) => openAround(graph, open, box), [] as string[]);
    selection.change({ toggled, inside: "" });
    const scene = this.scene!;
    const placeOf = (box: number) => {
      const placed = placedAs(scene, box);
      if (!placed) return Number.POSITIVE_INFINITY;
      return scene.direction === "down" ? placed.y : placed.x;
    };
    return boxes.toSorted((a, b) => placeOf(a) - placeOf(b) || a - b);
  }

  shapeOf(): string {
    return "";
  }

  noteOn(item: Item): string {
    const { graph, sides, union } = this;
    if (!graph || !sides || !union) return "";
    const box = isVertexItem(graph, item) ? null : graph.boxes[item]!;
    const change = box?.kind === "module" ? union.changed.get(box.name) : undefined;
    if (change) return `${change[0]} in ${this.run.id}, ${change[1]} in ${this.other().id}`;
    const side = sides.ofItem(item);
    if (side === "both") return "in both";
    if (side === "mixed") return `in both; inside: ${sides.signOf(item)}`;
    return `only in ${side === "one" ? this.run.id : this.other().id}`;
  }
}
