import type { Connector, HistoryRow, Site, SketchSlice } from "../connectors/connector";
import { iterationRows } from "../lib/iterations";
import { Resource } from "./resource.svelte";
import type { OpenRun } from "./run.svelte";
import { selection } from "./selection.svelte";

const POINTS = 1000;
const COLUMNS = 600;

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

/** A row for each recorded step: of the selected kind and iteration. */
export interface History {
  step: number[];
  rows: Record<string, number>[];
  /** How many iterations each step had. */
  iterations: number[];
  dtype: string[];
  shape: number[][];
}

/** One quantity of the selected site: its statistics and its distribution over steps. */
export class QuantityData {
  readonly loaded = new Resource<HistoryRow[]>({ gapMs: 1000 });
  readonly sketches = new Resource<SketchSlice[]>({ gapMs: 2000 });

  readonly history = $derived.by(() => this.select());

  constructor(
    readonly quantity: string,
    private readonly run: OpenRun,
  ) {}

  private select(): History | null {
    if (!this.loaded.data) return null;
    const { kind } = this.run;
    const asked = this.loaded.data.filter((row) => kind === null || row.kind === kind);
    const { rows, iterations } = iterationRows(asked, selection.current.iteration);
    return {
      step: rows.map(({ step }) => step),
      rows: rows.map(({ statistics }) => statistics),
      iterations,
      dtype: rows.map(({ dtype }) => dtype),
      shape: rows.map(({ shape }) => shape),
    };
  }

  load(connector: Connector, site: Site): void {
    const { quantity, run } = this;
    const key = `${run.id}/${site.site}`;
    const version = run.rows?.stats;
    this.loaded.load(key, version, (signal) =>
      connector.history(run.id, { site: site.site, quantity, limit: POINTS }, signal),
    );
    this.sketches.load(key, version, (signal) =>
      connector.sketches(run.id, { site: site.site, quantity, limit: COLUMNS }, signal),
    );
  }

  stop(): void {
    this.loaded.stop();
    this.sketches.stop();
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
