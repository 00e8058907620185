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
import { type Diagnosis, findings } from "../connectors/findings";
import type { EventRow } from "../connectors/kept";
import { SURE } from "../lib/findings";
import { nearest } from "../lib/search";
import { appendScalars, longest, type Series } from "../lib/series";
import { withOwn } from "../lib/statistics";
import { Muted } from "./muted.svelte";
import { Resource } from "./resource.svelte";
import { selection } from "./selection.svelte";

/** What is wrong is asked for again after this time at the earliest. */
const FINDINGS_GAP_MS = 3000;
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
  events = $state.raw<EventRow[]>([]);
  readonly diagnosis = new Resource<Diagnosis>({ keep: true, gapMs: FINDINGS_GAP_MS });
  readonly muted: Muted;
  error = $state<string | null>(null);
  isConnected = $state(true);
  receivedAt = $state(0);

  // Of its own, so that other changes of the selection do not go through all steps again.
  private readonly selectedKind = $derived(selection.current.kind);
  readonly kinds = $derived([...new Set(this.steps.kind)].sort());
  /** The recorded steps of the selected kind; of all if there is none of that kind. */
  readonly recordedSteps = $derived.by(() => {
    const kind = this.selectedKind;
    const isOfKind = kind !== null && this.kinds.includes(kind);
    return this.allRecordedSteps.filter((_, i) => !isOfKind || this.recordedKinds[i] === kind);
  });
  readonly allRecordedSteps = $derived(this.steps.step.filter((_, i) => this.steps.recorded[i]));
  private readonly recordedKinds = $derived(
    this.steps.kind.filter((_, i) => this.steps.recorded[i]),
  );
  readonly siteByName = $derived(new Map(this.sites.map((site) => [site.name, site])));
  readonly isLive = $derived(this.summary?.status === "live");
  readonly quantities = $derived(this.detail?.quantities ?? []);
  readonly statistics = $derived(withOwn(this.detail?.statistics ?? []));

  /** What is wrong, as far as it is sure and not muted. */
  readonly findings = $derived(
    (this.diagnosis.data?.findings ?? []).filter(
      ({ id, score }) => score >= SURE && !this.muted.ids.has(id),
    ),
  );

  private pending: RunChange | null = null;
  private isFetching = false;

  constructor(
    private readonly connector: Connector,
    readonly id: string,
  ) {
    this.muted = new Muted(id);
  }

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
      this.diagnosis.stop();
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

  /** What is written into the address for a step: nothing for the newest of a live run. */
  addressOf(step: number): number | null {
    const at = this.recordedAt(step);
    return at === this.recordedSteps.at(-1) && this.isLive ? null : at;
  }

  /** How many iterations a step had, its kind, and the signature of its graph. */
  stepFacts(step: number | null): { iterations: number; kind: string; graph: string } {
    const at = step === null ? -1 : nearest(this.steps.step, step);
    return {
      iterations: this.steps.iterations[at] ?? 1,
      kind: this.steps.kind[at] ?? "",
      graph: this.steps.graph[at] ?? "",
    };
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
      (grew("scalars") || grew("steps")) && this.loadScalars(), // steps have a loss too
      grew("notes") && this.loadNotes(),
      grew("events") && this.loadEvents(),
      had && (grew("sites") || (grew("stats") && isNew)) && this.loadDetail(),
    ]);
    this.summary = summary;
    this.receivedAt = Date.now() / 1000;
    this.rows = rows;
    if (rows.stats > 0) {
      this.diagnosis.load(this.id, rows, (signal) => findings(this.connector, this.id, signal));
    }
  }

  private async loadSites(): Promise<void> {
    this.sites = await this.connector.sites(this.id);
  }

  private async loadSteps(): Promise<void> {
    const old = this.steps;
    const rows = await this.connector.steps(this.id, old.step.at(-1) ?? null);
    this.steps = {
      step: old.step.concat(rows.step),
      kind: old.kind.concat(rows.kind),
      iterations: old.iterations.concat(rows.iterations),
      graph: old.graph.concat(rows.graph),
      recorded: old.recorded.concat(rows.recorded),
      started_at: old.started_at.concat(rows.started_at),
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

  private async loadEvents(): Promise<void> {
    this.events = await this.connector.eventLog(this.id);
  }
}

function noSteps(): StepColumns {
  return {
    step: [],
    kind: [],
    iterations: [],
    graph: [],
    recorded: [],
    started_at: [],
    duration_secs: [],
    recording_secs: [],
  };
}
