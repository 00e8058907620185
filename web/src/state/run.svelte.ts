import type {
  Connector,
  Note,
  Rows,
  RunChange,
  RunDetail,
  Site,
  StepColumns,
  Summary,
} from "../connectors/connector";
import { nearest } from "../lib/search";
import { appendScalars, longest, type Series } from "../lib/series";

const POINTS = 2000;

/** One run and what is known of it; grows while the run is live. */
export class OpenRun {
  detail = $state.raw<RunDetail | null>(null);
  summary = $state.raw<Summary | null>(null);
  rows = $state.raw<Rows | null>(null);
  sites = $state.raw<Site[]>([]);
  steps = $state.raw<StepColumns>(noSteps());
  scalars = $state.raw<ReadonlyMap<string, Series>>(new Map());
  notes = $state.raw<Note[]>([]);
  error = $state<string | null>(null);
  isConnected = $state(true);
  receivedAt = $state(0);

  readonly recordedSteps = $derived(this.steps.step.filter((_, i) => this.steps.recorded[i]));
  readonly siteByName = $derived(new Map(this.sites.map((site) => [site.name, site])));
  readonly isLive = $derived(this.summary?.status === "live");
  readonly quantities = $derived(this.detail?.quantities ?? []);

  private pending: RunChange | null = null;
  private isFetching = false;

  constructor(
    private readonly connector: Connector,
    readonly id: string,
  ) {}

  open(): () => void {
    let isClosed = false;
    let stopWatching = () => {};
    void this.loadDetail().then(() => {
      if (isClosed || !this.detail) return;
      const { summary, rows } = this.detail;
      this.change({ summary, rows });
      stopWatching = this.connector.watchRun(this.id, {
        onChange: (change) => this.change(change),
        onConnection: (isConnected) => {
          this.isConnected = isConnected;
        },
      });
    });
    return () => {
      isClosed = true;
      stopWatching();
    };
  }

  /** The recorded step that a selected step means: itself, the nearest, or the newest for null. */
  recordedAt(step: number | null): number | null {
    if (step === null) return this.recordedSteps.at(-1) ?? null;
    return this.recordedSteps[nearest(this.recordedSteps, step)] ?? null;
  }

  /** The recorded step so many before or after the selected one; null at the newest of a live run. */
  recordedBeside(step: number | null, offset: number): number | null {
    const steps = this.recordedSteps;
    if (steps.length === 0) return null;
    const from = step === null ? steps.length - 1 : nearest(steps, step);
    const to = Math.max(0, Math.min(steps.length - 1, from + offset));
    return to === steps.length - 1 && offset > 0 && this.isLive ? null : steps[to]!;
  }

  private async loadDetail(): Promise<void> {
    try {
      this.detail = await this.connector.run(this.id);
      this.summary ??= this.detail.summary;
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
    }
  }

  private change(change: RunChange): void {
    this.pending = change;
    void this.catchUp();
  }

  /** Fetches what grew, one change at a time: the newest change says all that the earlier ones did. */
  private async catchUp(): Promise<void> {
    if (this.isFetching) return;
    this.isFetching = true;
    while (this.pending) {
      const change = this.pending;
      this.pending = null;
      try {
        await this.take(change);
        this.error = null;
      } catch (error) {
        this.error = error instanceof Error ? error.message : String(error);
      }
    }
    this.isFetching = false;
  }

  private async take({ summary, rows }: RunChange): Promise<void> {
    const had = this.rows;
    const grew = (table: keyof Rows) => rows[table] !== (had?.[table] ?? 0);
    const isNew = this.quantities.length === 0;
    await Promise.all([
      grew("sites") && this.loadSites(),
      grew("steps") && this.loadSteps(),
      grew("scalars") && this.loadScalars(),
      grew("notes") && this.loadNotes(),
      had && (grew("sites") || (grew("stats") && isNew)) && this.loadDetail(),
    ]);
    this.summary = summary;
    this.receivedAt = Date.now() / 1000;
    this.rows = rows;
  }

  private async loadSites(): Promise<void> {
    this.sites = await this.connector.sites(this.id);
  }

  private async loadSteps(): Promise<void> {
    const old = this.steps;
    const rows = await this.connector.steps(this.id, old.step.at(-1) ?? null);
    this.steps = {
      step: old.step.concat(rows.step),
      recorded: old.recorded.concat(rows.recorded),
      duration_secs: old.duration_secs.concat(rows.duration_secs),
      recording_secs: old.recording_secs.concat(rows.recording_secs),
    };
  }

  /** Asks from the last step on, inclusive: its scalars may have been logged one after another. */
  private async loadScalars(): Promise<void> {
    if (longest(this.scalars) > 2 * POINTS) this.scalars = new Map();
    const last = Math.max(-1, ...[...this.scalars.values()].map((s) => s.step.at(-1) ?? -1));
    const query = { after: last > 0 ? last - 1 : null, points: POINTS };
    this.scalars = appendScalars(this.scalars, await this.connector.scalars(this.id, query));
  }

  private async loadNotes(): Promise<void> {
    this.notes = await this.connector.notes(this.id);
  }
}

function noSteps(): StepColumns {
  return { step: [], recorded: [], duration_secs: [], recording_secs: [] };
}
