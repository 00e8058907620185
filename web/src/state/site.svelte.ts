import type { Connector, HistoryRow, Site, SketchSlice } from "../connectors/connector";
import type { SampleRow } from "../connectors/kept";
import { iterationRows } from "../lib/iterations";
import { isOne, SAMPLE_STATISTICS, sampleHistory, sampleNote } from "../lib/samples";
import { nearest } from "../lib/search";
import { statisticOf } from "../lib/statistics";
import { Resource } from "./resource.svelte";
import type { OpenRun } from "./run.svelte";
import { selection } from "./selection.svelte";

const POINTS = 1000;
const COLUMNS = 600;
const SAMPLED_STEPS = 600;

const SHARES = ["zero_share", "nan_share", "inf_share"];

/** What every sample shares. */
const WITHOUT_BATCH = ["parameter", "buffer", "optimizer"];

/** The quantities that a site of this class can have. */
export function quantitiesOf(site: Site, recorded: readonly string[]): string[] {
  const possible =
    site.tensor_class === "parameter"
      ? ["value", "grad", "grad_applied", "update"]
      : ["optimizer", "buffer"].includes(site.tensor_class)
        ? ["value"]
        : ["value", "grad"];
  return possible.filter((quantity) => recorded.includes(quantity));
}

/** A row for each recorded step: of the selected kind and iteration, and sample where it was recorded. */
export interface History {
  step: number[];
  rows: Record<string, number>[];
  /** How many iterations each step had. */
  iterations: number[];
  dtype: string[];
  shape: number[][];
  /** What is said where these numbers are not, or not only, of the selected sample. */
  note: string;
}

/** One quantity of the selected site: its statistics and its distribution over steps. */
export class QuantityData {
  readonly loaded = new Resource<HistoryRow[]>();
  readonly sketches = new Resource<SketchSlice[]>({ gapMs: 800 });
  readonly samples = new Resource<SampleRow[]>({ gapMs: 2000 });
  private hasBatch = false;

  readonly history = $derived.by(() => this.select());

  constructor(
    readonly quantity: string,
    private readonly run: OpenRun,
  ) {}

  private select(): History | null {
    if (!this.loaded.data) return null;
    const { kind } = this.run;
    const asked = this.loaded.data.filter((row) => kind === null || row.kind === kind);
    const { sample, iteration } = selection.current;
    const one = this.hasBatch && isOne(sample) ? this.ofSample(asked, sample, iteration) : null;
    if (one) return one;
    const { rows, iterations } = iterationRows(asked, iteration);
    return {
      step: rows.map(({ step }) => step),
      rows: rows.map(({ statistics }) => statistics),
      iterations,
      dtype: rows.map(({ dtype }) => dtype),
      shape: rows.map(({ shape }) => shape),
      note: this.hasBatch ? sampleNote(sample, null) : "",
    };
  }

  /** What was recorded of one sample; null where nothing was. */
  private ofSample(
    batches: readonly HistoryRow[],
    key: string,
    iteration: number | null,
  ): History | null {
    const { kind } = this.run;
    const asked = (this.samples.data ?? []).filter((row) => kind === null || row.kind === kind);
    const { rows, iterations } = sampleHistory(asked, key, iteration);
    if (rows.length === 0) return null;
    const byStep = new Map(batches.map((row) => [row.step, row]));
    const facts = rows.map(({ step }) => byStep.get(step) ?? batches.at(-1));
    return {
      step: rows.map(({ step }) => step),
      rows: rows.map((row) =>
        Object.fromEntries(SAMPLE_STATISTICS.map((name) => [name, row[name]])),
      ),
      iterations,
      dtype: facts.map((row) => row?.dtype ?? ""),
      shape: facts.map((row) => row?.shape ?? []),
      note: sampleNote(key, key),
    };
  }

  /** The shares of zeros, NaN and infinity at a step, in the order of `SHARES`; null where a distribution is of
   * something else than these numbers: of all iterations, or of the whole batch. */
  sharesAt(step: number | null, isOfAllIterations: boolean): number[] | null {
    const { history, run } = this;
    const at = history && step !== null ? nearest(history.step, step) : -1;
    const row = history?.rows[at];
    if (!row || history.step[at] !== step || history.note !== "") return null;
    if (isOfAllIterations && history.iterations[at]! > 1) return null;
    return SHARES.map((name) => statisticOf(name, run.statistics).of(row));
  }

  load(connector: Connector, site: Site): void {
    const { quantity, run } = this;
    const key = `${run.id}/${site.site}`;
    const version = run.rows?.stats;
    this.hasBatch = !WITHOUT_BATCH.includes(site.tensor_class);
    if (this.hasBatch && isOne(selection.current.sample)) {
      this.samples.load(key, run.rows?.samples, (signal) =>
        connector.siteSamples(run.id, { site: site.site, quantity, limit: SAMPLED_STEPS }, signal),
      );
    }
    this.loaded.load(key, version, (signal) =>
      connector.history(run.id, { site: site.site, quantity, limit: POINTS }, signal),
    );
    const { iteration } = selection.current;
    const { kind } = run;
    this.sketches.load(`${key}/${iteration}/${kind}`, version, (signal) =>
      connector.sketches(
        run.id,
        { site: site.site, quantity, limit: COLUMNS, iteration, kind },
        signal,
      ),
    );
  }

  stop(): void {
    this.loaded.stop();
    this.sketches.stop();
    this.samples.stop();
  }
}

/** The data of the selected site, shared by the inspector and the tensor view. */
export class SiteData {
  site = $state.raw<Site | null>(null);
  quantities = $state.raw<QuantityData[]>([]);

  /** To be called from an effect: follows the selection and the run's growth. */
  follow(connector: Connector, run: OpenRun, site: Site | null): void {
    if (site === null) {
      this.clear();
      return;
    }
    const names = quantitiesOf(site, run.quantities);
    if (site.site !== this.site?.site || names.join() !== this.names()) {
      this.clear();
      this.site = site;
      this.quantities = names.map((name) => new QuantityData(name, run));
    }
    for (const quantity of this.quantities) quantity.load(connector, site);
  }

  clear(): void {
    for (const quantity of this.quantities) quantity.stop();
    this.site = null;
    this.quantities = [];
  }

  private names(): string {
    return this.quantities.map(({ quantity }) => quantity).join();
  }
}
