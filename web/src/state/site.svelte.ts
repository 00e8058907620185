import type { Connector, History, Site, SketchSlice } from "../connectors/connector";
import { Resource } from "./resource.svelte";
import type { OpenRun } from "./run.svelte";

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

/** One quantity of the selected site: its statistics and its distribution over steps. */
export class QuantityData {
  readonly history = new Resource<History>({ gapMs: 1000 });
  readonly sketches = new Resource<SketchSlice[]>({ gapMs: 2000 });

  constructor(readonly quantity: string) {}

  load(connector: Connector, run: OpenRun, site: Site): void {
    const { quantity } = this;
    const key = `${run.id}/${site.site}`;
    const version = run.rows?.stats;
    this.history.load(key, version, (signal) =>
      connector.history(run.id, { site: site.site, quantity, limit: POINTS }, signal),
    );
    this.sketches.load(key, version, (signal) =>
      connector.sketches(run.id, { site: site.site, quantity, limit: COLUMNS }, signal),
    );
  }

  stop(): void {
    this.history.stop();
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
      this.quantities = names.map((name) => new QuantityData(name));
    }
    for (const quantity of this.quantities) quantity.load(connector, run, site);
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
