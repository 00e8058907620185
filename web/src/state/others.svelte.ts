import type { Connector, RunDetail, Site } from "../connectors/connector";
import { appendScalars, type Series } from "../lib/series";
import { Resource } from "./resource.svelte";

/** A run that another one is compared with. */
export interface OtherRun {
  id: string;
  detail: RunDetail;
  siteByName: ReadonlyMap<string, Site>;
  scalars: ReadonlyMap<string, Series>;
}

const POINTS = 1500;

/** The runs that one is compared with, read whole when they are chosen. */
export class Others {
  readonly loaded = new Resource<OtherRun[]>({ keep: true, gapMs: 2000 });

  constructor(private readonly connector: Connector) {}

  load(ids: readonly string[], version: unknown): void {
    this.loaded.load(ids.join("\n"), version, (signal) =>
      Promise.all(ids.map((id) => this.read(id, signal))),
    );
  }

  private async read(id: string, signal: AbortSignal): Promise<OtherRun> {
    const [detail, sites, scalars] = await Promise.all([
      this.connector.run(id, signal),
      this.connector.sites(id, signal),
      this.connector.scalars(id, { after: null, points: POINTS }, signal),
    ]);
    return {
      id,
      detail,
      siteByName: new Map(sites.map((site) => [site.name, site])),
      scalars: appendScalars(new Map(), scalars, -1),
    };
  }
}
