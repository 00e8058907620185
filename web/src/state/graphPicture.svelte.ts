import type { Graph } from "../lib/graph/model";
import { type Item, Nesting } from "../lib/graph/nesting";
import { ALL, inFewWords, openAround, openBoxes, toggle } from "../lib/graph/open";
import type { Presence } from "../lib/graph/presence";
import { reachOf } from "../lib/graph/reach";
import { SceneMaker } from "../lib/graph/scene";
import type { Sides } from "../lib/graph/sides";
import { type ItemValues, mainVertex } from "../lib/graph/values";
import type { ColourScale } from "../lib/scale";
import type { Frame } from "./frame.svelte";
import { selection } from "./selection.svelte";

/** A graph that is drawn: laid out, opened and lit as the selection says, whatever its boxes tell. */
export abstract class GraphPicture {
  abstract readonly graph: Graph | null;
  /** The numbers that boxes show, what they are, and their colours. */
  abstract readonly values: ItemValues;
  abstract readonly title: string;
  abstract readonly isShare: boolean;
  abstract readonly scale: ColourScale | null;
  abstract readonly presence: Presence;
  /** Which of two runs has what; null for the graph of one. */
  abstract readonly sides: Sides | null;

  private readonly maker = $derived.by(() => this.graph && new SceneMaker(new Nesting(this.graph)));
  // Each part of the selection on its own: what does not depend on a change is not done again.
  private readonly inside = $derived(selection.current.inside);
  private readonly direction = $derived(selection.current.direction);
  private readonly toggledText = $derived(selection.current.toggled.join("\n"));
  private readonly siteName = $derived(selection.current.site);
  private readonly vertexByName = $derived.by(
    () => new Map((this.graph?.vertices ?? []).map(({ name, index }) => [name, index])),
  );
  readonly root = $derived.by(() => this.graph?.boxById.get(this.inside) ?? 0);
  readonly scene = $derived.by(() => {
    if (!this.graph || !this.maker) return null;
    const toggled = this.toggledText === "" ? [] : this.toggledText.split("\n");
    return this.maker.make(this.root, openBoxes(this.graph, toggled), this.direction);
  });

  readonly vertex = $derived.by(() => this.vertexOf(this.siteName));
  readonly selected = $derived.by<Item | null>(() => {
    const item = this.vertex === null ? -1 : (this.scene?.itemOfVertex[this.vertex] ?? -1);
    return item < 0 ? null : item;
  });
  /** Of two runs none is lit: its colours would seem to be theirs. */
  readonly reach = $derived.by(() =>
    this.graph && this.scene && !this.sides && this.vertex !== null && this.selected !== null
      ? reachOf(this.graph, this.scene, this.vertex)
      : null,
  );

  private readonly pinnedText = $derived(selection.current.pins.join("\n"));
  /** The pinned tensors, by what shows them: the places of their colours. */
  readonly pinned = $derived.by(() => {
    const byItem = new Map<Item, number[]>();
    for (const [place, name] of this.pinnedText.split("\n").entries()) {
      const vertex = name === "" ? null : this.vertexOf(name);
      const item = vertex === null ? -1 : (this.scene?.itemOfVertex[vertex] ?? -1);
      if (item >= 0) byItem.set(item, [...(byItem.get(item) ?? []), place]);
    }
    return byItem;
  });

  constructor(private readonly frame: Frame) {}

  abstract shapeOf(vertex: number): string;

  /** What is to be said of something besides its number; empty for nothing. */
  abstract noteOn(item: Item): string;

  /** Selects the tensor that speaks for something, or keeps the one in it that is selected. */
  select(item: Item, isSeen = true): void {
    const { graph, scene } = this;
    if (!graph || !scene || item === this.selected) return;
    const vertex = item >= graph.boxes.length ? item - graph.boxes.length : this.chosenIn(item);
    if (vertex === null) return;
    const site = graph.vertices[vertex]!.name;
    if (isSeen) this.frame.shownInGraph = site;
    selection.change({ site });
  }

  /** The site that speaks for something. */
  siteOf(item: Item): string | null {
    const { graph } = this;
    if (!graph) return null;
    if (item === this.selected) return selection.current.site;
    const vertex = item >= graph.boxes.length ? item - graph.boxes.length : this.chosenIn(item);
    return vertex === null ? null : graph.vertices[vertex]!.name;
  }

  /** Whether a selected site was chosen here, was shown here before, or speaks for the box that is seen. */
  isKnown(site: string | null): boolean {
    const before = this.frame.shownInGraph;
    this.frame.shownInGraph = site;
    return site === null || site === before || (before === undefined && this.isSpoken());
  }

  /** A click on a closed box selects the tensor that speaks for it: the box stays closed in a link to that. */
  private isSpoken(): boolean {
    const { graph, selected, vertex } = this;
    if (!graph || selected === null || vertex === null) return false;
    return selected < graph.boxes.length && mainVertex(graph, selected) === vertex;
  }

  toggle(item: Item): void {
    const { graph } = this;
    const box = graph?.boxes[item];
    if (!graph || !box) return;
    selection.change({ toggled: inFewWords(graph, toggle(selection.current.toggled, box.id)) });
  }

  /** Opens everything, or goes back to what is open at first. */
  toggleAll(): void {
    selection.change({ toggled: selection.current.toggled.includes(ALL) ? [] : [ALL] });
  }

  enter(item: Item): void {
    const box = this.graph?.boxes[item];
    if (box) selection.change({ inside: box.id });
  }

  /** Opens what is around a tensor, so that its own box is seen. */
  revealSelected(): void {
    const { graph, vertex } = this;
    if (!graph || vertex === null) return;
    const { box } = graph.vertices[vertex]!;
    const toggled = openAround(graph, selection.current.toggled, box);
    const isInside = this.selected !== null;
    selection.amend({ toggled, ...(isInside ? {} : { inside: "" }) });
  }

  /** The tensor of a box that a click on it means. */
  protected chosenIn(box: number): number | null {
    return mainVertex(this.graph!, box);
  }

  private vertexOf(name: string | null): number | null {
    if (name === null) return null;
    // An optimizer's state is no tensor of the graph: its parameter stands for it.
    const owner = name.slice(0, name.lastIndexOf(":"));
    return this.vertexByName.get(name) ?? this.vertexByName.get(owner) ?? null;
  }
}
