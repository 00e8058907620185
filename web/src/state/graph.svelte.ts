import type { Connector, MomentQuery } from "../connectors/connector";
import { formatInteger, formatShape } from "../lib/format";
import { buildGraph } from "../lib/graph/model";
import { hasAny, type Moment, pickRows, spread } from "../lib/graph/moment";
import { type Item, isVertexItem } from "../lib/graph/nesting";
import { ALL_PRESENT, presenceOf } from "../lib/graph/presence";
import { placedAs } from "../lib/graph/scene";
import { itemValues, withSelected } from "../lib/graph/values";
import { askedSample, noneOfSample, whyNotOfSample } from "../lib/samples";
import { colourScale, defaultScale, scalesFor, withBeyond } from "../lib/scale";
import { isOfParameters, shownTitle, statisticOf } from "../lib/statistics";
import type { Frame } from "./frame.svelte";
import { GraphPicture } from "./graphPicture.svelte";
import { Resource } from "./resource.svelte";
import type { OpenRun } from "./run.svelte";
import { selection } from "./selection.svelte";

/** At how many steps all over the run it is looked how great the numbers are that are to have colours. */
const SCALE_STEPS = 6;
const STEPS_ASKED = 200;
/** What every sample shares. */
const SHARED = ["parameter", "buffer"];

/** The graph of the selected step, laid out, coloured and lit as the selection says. */
export class GraphState extends GraphPicture {
  /** The statistic that colours the graph, and values for shapes and for what is there at all. */
  readonly colours = new Resource<Moment>({ keep: true, gapMs: 0 });
  readonly seen = new Resource<Moment>({ keep: true, gapMs: 0 });
  /** The same statistic at some steps all over the run: the scale is the same at each step, and in each link. */
  private readonly overSteps = new Resource<Moment[]>({ keep: true });

  readonly step = $derived.by(() => this.run.step);
  readonly statistic = $derived.by(() =>
    statisticOf(selection.current.statistic, this.run.statistics),
  );
  readonly isShare = $derived(this.statistic.kind === "share");
  // Each part of the selection on its own: what does not depend on a change is not done again.
  private readonly quantity = $derived(selection.current.quantity);
  private readonly wantedScale = $derived(selection.current.scale);
  /** The sample whose numbers are shown; null for whole batches. */
  readonly sample = $derived(askedSample(selection.current.sample));
  readonly title = $derived(shownTitle(this.statistic, this.quantity, this.sample));
  private readonly whyNotSample = $derived.by(() =>
    whyNotOfSample({
      sample: this.sample,
      quantity: this.quantity,
      statistic: this.statistic,
      hasSamples: (this.run.rows?.samples ?? 0) > 0,
      isFile: this.connector.about.length > 0,
    }),
  );
  /** What is to be said of the chosen sample where there is nothing of it. */
  readonly aboutSample = $derived.by(() => {
    const { sample, colours } = this;
    if (sample === null || this.whyNotSample !== null) return this.whyNotSample;
    if (!colours.data || hasAny(colours.data)) return null;
    return noneOfSample(sample, `at step ${formatInteger(this.step)}`, this.statistic);
  });

  readonly graph = $derived.by(() =>
    this.answer.data
      ? buildGraph(this.answer.data, this.run.sites, this.run.detail?.modules ?? [])
      : null,
  );
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
  private readonly numbers = $derived.by(() => {
    if (!this.graph || !this.colours.data || !this.pickedColours) return null;
    const source = {
      graph: this.graph,
      moment: this.colours.data,
      picked: this.pickedColours,
      isOfParameters: isOfParameters(this.quantity, this.statistic.name),
    };
    return { source, values: itemValues(source) };
  });
  readonly values = $derived.by(() => {
    if (!this.numbers) return new Map();
    return withSelected(this.numbers.values, this.numbers.source, this.vertex);
  });
  readonly sides = null;
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
    private readonly shared: Frame,
  ) {
    super(shared);
  }

  get answer() {
    return this.shared.dependencies.answer;
  }

  /** To be called from effects: loads what the selection needs and is not there. */
  loadGraph(): void {
    this.shared.dependencies.follow(this.connector, this.run);
  }

  loadMoments(): void {
    const { step } = this;
    if (step === null) return;
    const { quantity, sample } = this;
    const statistic = this.statistic.name;
    const ask = (query: Omit<MomentQuery, "step">) => (signal: AbortSignal) =>
      this.connector.moment(this.run.id, { step, ...query }, signal);
    this.seen.load(`${step}`, 0, ask({ quantity: "value", statistic: "rms" }));
    if (this.whyNotSample !== null) {
      this.colours.clear();
      return;
    }
    const query = { quantity, statistic, sample };
    this.colours.load(`${step}/${quantity}/${statistic}/${sample}`, 0, ask(query), sample);
  }

  /** Of a live run again each time it is twice as long. */
  loadScale(): void {
    const { quantity, sample } = this;
    const statistic = this.statistic.name;
    const recorded = this.run.summary?.recorded_steps ?? 0;
    if (recorded === 0 || this.whyNotSample !== null) return;
    const version = Math.floor(Math.log2(recorded));
    const key = `${quantity}/${statistic}/${sample}`;
    this.overSteps.load(key, version, (signal) => this.askOverSteps(signal), sample);
  }

  private async askOverSteps(signal: AbortSignal): Promise<Moment[]> {
    const { quantity, sample } = this;
    const statistic = this.statistic.name;
    const asked = { kind: null, after: null, around: null, points: STEPS_ASKED };
    const { rows } = await this.connector.steps(this.run.id, asked, signal);
    const steps = spread(rows.step, SCALE_STEPS);
    const ask = (step: number) =>
      this.connector.moment(this.run.id, { step, quantity, statistic, sample }, signal);
    return Promise.all(steps.map(ask));
  }

  stop(): void {
    this.colours.stop();
    this.overSteps.stop();
    this.seen.stop();
  }

  noteOn(item: Item): string {
    const { graph, sample } = this;
    if (!graph || sample === null || !this.colours.data || this.values.get(item)) return "";
    const vertices = isVertexItem(graph, item)
      ? [graph.vertices[item - graph.boxes.length]!]
      : graph.boxes[item]!.vertices.map((index) => graph.vertices[index]!);
    const isShared = vertices.length > 0 && vertices.every(({ colour }) => SHARED.includes(colour));
    return `nothing of sample ${sample} here${isShared ? ", which every sample shares" : ""}`;
  }

  shapeOf(vertex: number): string {
    const site = this.graph?.vertices[vertex]?.site ?? -1;
    const row = this.pickedSeen?.row[site] ?? -1;
    return row < 0 ? "" : formatShape(this.seen.data!.shape(row));
  }

  protected override chosenIn(box: number): number | null {
    const isOpen = this.scene && placedAs(this.scene, box)?.isOpen;
    const shown = isOpen ? undefined : this.values.get(box)?.vertex;
    if (shown !== undefined && isOfParameters(this.quantity, this.statistic.name)) return shown;
    return super.chosenIn(box);
  }

  /** Colours are those of the whole run: they stay comparable while steps go by, and a link shows the same. */
  private makeScale() {
    const wanted = this.wantedScale;
    const { kind } = this.statistic;
    const name =
      wanted && wanted !== "relative" && scalesFor(kind).includes(wanted)
        ? wanted
        : defaultScale(kind);
    if (!this.overSteps.data || !this.colours.data || !this.graph) return null;
    const { vertexOfSite } = this.graph;
    // A sample may have been in one batch alone: then its own step says how great its numbers are.
    const all = this.overSteps.data.some(hasAny) ? this.overSteps.data : [this.colours.data];
    const values = all.flatMap(({ site, value }) =>
      Array.from(value, (each, i) =>
        vertexOfSite.has(site[i]!) ? (each ?? Number.NaN) : Number.NaN,
      ),
    );
    return colourScale(kind, name, values);
  }
}
