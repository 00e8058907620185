import type { Connector } from "../connectors/connector";
import { formatShape } from "../lib/format";
import { buildGraph } from "../lib/graph/model";
import { type Moment, pickRows, spread } from "../lib/graph/moment";
import { type Item, Nesting } from "../lib/graph/nesting";
import { ALL, openAround, openBoxes, toggle } from "../lib/graph/open";
import { ALL_PRESENT, presenceOf } from "../lib/graph/presence";
import { reachOf } from "../lib/graph/reach";
import { SceneMaker } from "../lib/graph/scene";
import { itemValues, mainVertex } from "../lib/graph/values";
import { colourScale, defaultScale, scalesFor, withBeyond } from "../lib/scale";
import { isOfParameters, statisticOf } from "../lib/statistics";
import type { Frame } from "./frame.svelte";
import { Resource } from "./resource.svelte";
import type { OpenRun } from "./run.svelte";
import { selection } from "./selection.svelte";

/** At how many steps all over the run it is looked how great the numbers are that are to have colours. */
const SCALE_STEPS = 6;
const STEPS_ASKED = 200;

/** The graph of the selected step, laid out, coloured and lit as the selection says. */
export class GraphState {
  /** The statistic that colours the graph, and values for shapes and for what is there at all. */
  readonly colours = new Resource<Moment>({ keep: true, gapMs: 0 });
  readonly seen = new Resource<Moment>({ keep: true, gapMs: 0 });
  /** The same statistic at some steps all over the run: the scale is the same at each step, and in each link. */
  private readonly overSteps = new Resource<Moment[]>({ keep: true });

  readonly step = $derived.by(() => this.run.step);
  readonly statistic = $derived.by(() =>
    statisticOf(selection.current.statistic, this.run.statistics),
  );
  // Each part of the selection on its own: what does not depend on a change is not done again.
  private readonly quantity = $derived(selection.current.quantity);
  private readonly wantedScale = $derived(selection.current.scale);

  readonly graph = $derived.by(() =>
    this.answer.data
      ? buildGraph(this.answer.data, this.run.sites, this.run.detail?.modules ?? [])
      : null,
  );
  private readonly maker = $derived(this.graph && new SceneMaker(new Nesting(this.graph)));
  private readonly inside = $derived(selection.current.inside);
  private readonly direction = $derived(selection.current.direction);
  private readonly toggledText = $derived(selection.current.toggled.join("\n"));
  private readonly siteName = $derived(selection.current.site);
  readonly root = $derived(this.graph?.boxById.get(this.inside) ?? 0);
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
  readonly reach = $derived.by(() =>
    this.graph && this.scene && this.vertex !== null && this.selected !== null
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

  private readonly iterations = $derived.by(() => this.run.iterations);
  private readonly iteration = $derived(selection.current.iteration);
  private readonly pickedColours = $derived.by(() =>
    this.colours.data ? pickRows(this.colours.data, this.iteration, this.iterations) : null,
  );
  private readonly pickedSeen = $derived.by(() =>
    this.seen.data ? pickRows(this.seen.data, this.iteration, this.iterations) : null,
  );
  readonly presence = $derived.by(() => {
    if (!this.graph || !this.scene || !this.pickedSeen || this.iterations <= 1) return ALL_PRESENT;
    const iteration = this.iteration ?? this.iterations - 1;
    return presenceOf(this.graph, this.scene, this.pickedSeen, iteration, this.iterations);
  });
  readonly values = $derived.by(() => {
    if (!this.graph || !this.scene || !this.colours.data || !this.pickedColours) return new Map();
    return itemValues(this.scene, {
      graph: this.graph,
      moment: this.colours.data,
      picked: this.pickedColours,
      selected: this.vertex,
      isOfParameters: isOfParameters(this.quantity, this.statistic.name),
    });
  });
  private readonly wholeScale = $derived.by(() => this.makeScale());
  readonly scale = $derived.by(() => {
    const { graph } = this;
    const scale = this.wholeScale;
    if (!graph || !scale || !this.colours.data) return null;
    const { site, value } = this.colours.data;
    const isDrawn = (_: unknown, i: number) => graph.vertexOfSite.has(site[i]!);
    return withBeyond(scale, Array.from(value).filter(isDrawn));
  });

  constructor(
    private readonly connector: Connector,
    private readonly run: OpenRun,
    private readonly frame: Frame,
  ) {}

  get answer() {
    return this.frame.dependencies.answer;
  }

  /** To be called from effects: loads what the selection needs and is not there. */
  loadGraph(): void {
    this.frame.dependencies.follow(this.connector, this.run);
  }

  loadMoments(): void {
    const { step } = this;
    if (step === null) return;
    const { quantity, statistic } = selection.current;
    const ask = (quantity: string, statistic: string) => (signal: AbortSignal) =>
      this.connector.moment(this.run.id, { step, quantity, statistic }, signal);
    this.colours.load(`${step}/${quantity}/${statistic}`, 0, ask(quantity, statistic));
    this.seen.load(`${step}`, 0, ask("value", "rms"));
  }

  /** Of a live run again each time it is twice as long. */
  loadScale(): void {
    const { quantity, statistic } = selection.current;
    const recorded = this.run.summary?.recorded_steps ?? 0;
    if (recorded === 0) return;
    const version = Math.floor(Math.log2(recorded));
    this.overSteps.load(`${quantity}/${statistic}`, version, (signal) => this.askOverSteps(signal));
  }

  private async askOverSteps(signal: AbortSignal): Promise<Moment[]> {
    const { quantity, statistic } = selection.current;
    const asked = { kind: null, after: null, around: null, points: STEPS_ASKED };
    const { rows } = await this.connector.steps(this.run.id, asked, signal);
    const steps = spread(rows.step, SCALE_STEPS);
    const ask = (step: number) =>
      this.connector.moment(this.run.id, { step, quantity, statistic }, signal);
    return Promise.all(steps.map(ask));
  }

  stop(): void {
    this.colours.stop();
    this.overSteps.stop();
    this.seen.stop();
  }

  shapeOf(vertex: number): string {
    const site = this.graph?.vertices[vertex]?.site ?? -1;
    const row = this.pickedSeen?.row[site] ?? -1;
    return row < 0 ? "" : formatShape(this.seen.data!.shape(row));
  }

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
    const box = this.graph?.boxes[item];
    if (box) selection.change({ toggled: toggle(selection.current.toggled, box.id) });
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

  private chosenIn(box: number): number | null {
    const { quantity, statistic } = selection.current;
    const shown = this.values.get(box)?.vertex;
    if (shown !== undefined && isOfParameters(quantity, statistic)) return shown;
    return mainVertex(this.graph!, box);
  }

  private vertexOf(name: string | null): number | null {
    if (name === null || !this.graph) return null;
    // An optimizer's state is no tensor of the graph: its parameter stands for it.
    for (const each of [name, name.slice(0, name.lastIndexOf(":"))]) {
      const site = this.run.siteByName.get(each)?.site;
      const vertex = site === undefined ? undefined : this.graph.vertexOfSite.get(site);
      if (vertex !== undefined) return vertex;
    }
    return null;
  }

  /** Colours are those of the whole run: they stay comparable while steps go by, and a link shows the same. */
  private makeScale() {
    const wanted = this.wantedScale;
    const { kind } = this.statistic;
    const name =
      wanted && wanted !== "relative" && scalesFor(kind).includes(wanted)
        ? wanted
        : defaultScale(kind);
    if (!this.overSteps.data || !this.graph) return null;
    const { vertexOfSite } = this.graph;
    const values = this.overSteps.data.flatMap(({ site, value }) =>
      Array.from(value, (each, i) =>
        vertexOfSite.has(site[i]!) ? (each ?? Number.NaN) : Number.NaN,
      ),
    );
    return colourScale(kind, name, values);
  }
}
