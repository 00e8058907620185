import type {
  Connector,
  Note,
  Rows,
  RunChange,
  RunDetail,
  Site,
  Summary,
} from "../connectors/connector";
import { type Diagnosis, findings } from "../connectors/findings";
import type { EventRow } from "../connectors/kept";
import { AGAIN_MS } from "../connectors/transport";
import { blocksOf } from "../lib/blocks";
import { SURE } from "../lib/findings";
import { lostBands } from "../lib/lost";
import { appendScalars, longest, type Series, thinLater } from "../lib/series";
import { withOwn } from "../lib/statistics";
import { Muted } from "./muted.svelte";
import { Resource } from "./resource.svelte";
import { HeldSteps } from "./steps.svelte";

/** What is wrong is asked for again after this time at the earliest. */
const FINDINGS_GAP_MS = 3000;
const POINTS = 2000;
/** The server thins to so many stretches of steps, and the page what comes later. */
const STRETCHES = POINTS / 4;
/** When a scalar has so many points more, all are asked for again, thinned: not too often, for those of a
 * long run take a while, but never later than when there are very many. */
const NEW_POINTS = 100;
const WHOLE_GAP_MS = 30_000;
const MOST_POINTS = 2 * POINTS;

/** One run and what is known of it; grows while the run is live. */
export class OpenRun {
  detail = $state.raw<RunDetail | null>(null);
  summary = $state.raw<Summary | null>(null);
  rows = $state.raw<Rows | null>(null);
  sites = $state.raw<Site[]>([]);
  scalars = $state.raw<ReadonlyMap<string, Series>>(new Map());
  notes = $state.raw<Note[]>([]);
  events = $state.raw<EventRow[]>([]);
  /** How many notes and events are not held, because there are very many. */
  leftOut = $state.raw({ notes: 0, events: 0 });
  readonly diagnosis = new Resource<Diagnosis>({ keep: true, gapMs: FINDINGS_GAP_MS });
  readonly muted: Muted;
  error = $state<string | null>(null);
  isConnected = $state(true);
  receivedAt = $state(0);

  private readonly held: HeldSteps;
  /** The recorded steps that are held, of the selected kind: all around the selected one, some elsewhere. */
  readonly steps = $derived.by(() => this.held.rows);
  /** The recorded step that the selection means: itself, the nearest, or the newest. */
  readonly step = $derived.by(() => this.held.at?.step ?? null);
  /** How many iterations it had, and the signature of its graph. */
  readonly iterations = $derived.by(() => this.held.at?.iterations ?? 1);
  readonly graph = $derived.by(() => this.held.at?.graph ?? "");
  readonly stepFacts = $derived.by(() => this.held.facts);
  readonly kinds = $derived.by(() => this.held.kinds);
  /** The selected kind, if the run has steps of it. */
  readonly kind = $derived.by(() => this.held.kind);
  /** The first and the last step, recorded or not; and of those that are recorded. */
  readonly ends = $derived<[number, number]>([this.stepFacts.first ?? 0, this.stepFacts.last ?? 1]);
  readonly recordedEnds = $derived<[number, number]>([
    this.steps.step[0] ?? 0,
    this.steps.step.at(-1) ?? 1,
  ]);
  /** The recorded steps that cannot be read, and where they are on an axis of steps. */
  readonly lost = $derived(this.detail?.lost_steps ?? []);
  readonly lostBands = $derived(lostBands(this.lost, this.steps.step));
  readonly siteByName = $derived(new Map(this.sites.map((site) => [site.name, site])));
  readonly blockOf = $derived(blocksOf(this.sites.map(({ module }) => module)));
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
  private isClosed = false;
  /** The last step whose kind was known when scalars were asked for. */
  private settled: number | null = null;
  /** When all scalars were asked for, up to which step, and how many points of one that were. */
  private whole = { points: 0, at: 0, last: -1 };

  constructor(
    private readonly connector: Connector,
    readonly id: string,
  ) {
    this.muted = new Muted(id);
    this.held = new HeldSteps(connector, id, () => !this.isClosed);
  }

  open(): () => void {
    let stopWatching = () => {};
    this.isClosed = false;
    let again = 0;
    const begin = async () => {
      await this.loadDetail();
      if (this.isClosed) return;
      if (!this.detail) {
        again = window.setTimeout(begin, AGAIN_MS); // it may be about to be written
        return;
      }
      const { summary, rows } = this.detail;
      this.change({ summary, rows });
      stopWatching = this.connector.watchRun(this.id, {
        onChange: (change) => this.change(change),
        onConnection: (isConnected) => {
          this.isConnected = isConnected;
        },
      });
    };
    void begin();
    return () => {
      this.isClosed = true;
      clearTimeout(again);
      stopWatching();
      this.diagnosis.stop();
    };
  }

  /** To be called from an effect: asks for the steps around the selected one, if they are not held. */
  followSelection(): void {
    if (this.rows && !this.held.isKnown) void this.held.look().catch((error) => this.fail(error));
  }

  /** Selects the recorded step so many before or after the selected one, or follows the newest of a live
   * run; and says whether that is another one. */
  async walk(offset: number): Promise<boolean> {
    const before = this.step;
    try {
      await this.held.walk(offset, this.isLive);
    } catch (error) {
      this.fail(error);
    }
    return !this.isClosed && this.step !== before;
  }

  /** What is written into the address for a step: nothing for the newest of a live run. */
  addressOf(step: number): number | null {
    const at = this.held.nearest(step);
    return at === this.steps.step.at(-1) && this.isLive ? null : at;
  }

  private async loadDetail(): Promise<void> {
    try {
      this.detail = await this.connector.run(this.id);
      if (!this.summary) this.summarize(this.detail.summary);
    } catch (error) {
      this.fail(error);
    }
  }

  /** An age is as of the time at which it was told. */
  private summarize(summary: Summary): void {
    this.summary = summary;
    this.receivedAt = Date.now() / 1000;
  }

  private fail(error: unknown): void {
    this.error = error instanceof Error ? error.message : String(error);
  }

  private change(change: RunChange): void {
    this.pending = change;
    void this.catchUp();
  }

  /** Fetches what grew, one change at a time: the newest change says all that the earlier ones did. */
  private async catchUp(): Promise<void> {
    if (this.isFetching) return;
    this.isFetching = true;
    while (this.pending && !this.isClosed) {
      const change = this.pending;
      this.pending = null;
      try {
        await this.take(change);
        this.error = null;
      } catch (error) {
        this.fail(error);
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
      grew("steps") && this.held.grow(),
      (grew("scalars") || grew("steps")) && this.loadScalars(), // steps have a loss too
      grew("notes") && this.loadNotes(),
      grew("events") && this.loadEvents(),
      had && (grew("sites") || (grew("stats") && isNew)) && this.loadDetail(),
    ]);
    this.summarize(summary);
    this.rows = rows;
    if (rows.stats > 0) {
      this.diagnosis.load(this.id, rows, (signal) => findings(this.connector, this.id, signal));
    }
  }

  private async loadSites(): Promise<void> {
    this.sites = await this.connector.sites(this.id);
  }

  /** Asks from the last step on, inclusive: its scalars may have been logged one after another; or from
   * before it, where the kind of a step was not known yet. */
  private async loadScalars(): Promise<void> {
    const old = this.areScalarsMany() ? new Map<string, Series>() : this.scalars;
    const last = Math.max(-1, ...[...old.values()].map((series) => series.step.at(-1)!));
    const after = Math.min(last, this.settled ?? last) - 1;
    const query = { after: after < 0 ? null : after, points: POINTS };
    const rows = await this.connector.scalars(this.id, query);
    const grown = appendScalars(old, rows, after);
    this.settled = rows.settled;
    if (query.after === null) {
      const { step } = longest(grown);
      this.whole = { points: step.length, at: performance.now(), last: step.at(-1) ?? -1 };
    }
    const { last: since } = this.whole;
    this.scalars = new Map(
      [...grown].map(([name, all]) => [name, thinLater(all, since, STRETCHES)]),
    );
  }

  private areScalarsMany(): boolean {
    const { length } = longest(this.scalars).step;
    const isLongAgo = performance.now() - this.whole.at > WHOLE_GAP_MS;
    return length > MOST_POINTS || (length > this.whole.points + NEW_POINTS && isLongAgo);
  }

  private async loadNotes(): Promise<void> {
    const { rows, leftOut } = await this.connector.notes(this.id);
    this.notes = rows;
    this.leftOut = { ...this.leftOut, notes: leftOut };
  }

  private async loadEvents(): Promise<void> {
    const { rows, leftOut } = await this.connector.eventLog(this.id);
    this.events = rows;
    this.leftOut = { ...this.leftOut, events: leftOut };
  }
}
