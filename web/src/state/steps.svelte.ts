import type { Connector, StepFacts } from "../connectors/connector";
import { nearest } from "../lib/search";
import { appendSteps, NO_ROWS, rowBeside, rowNear, type StepRows } from "../lib/steps";
import { selection } from "./selection.svelte";

const POINTS = 2000;
/** When so many have come one after another, all are asked for again, thinned. */
const MOST_NEW = 100;

interface Held {
  rows: StepRows;
  facts: StepFacts;
  /** What was asked for: only steps of this kind, and all around this step. */
  kind: string | null;
  around: number | null;
  /** How many came since. */
  later: number;
}

interface RecordedStep {
  step: number;
  iterations: number;
  graph: string;
}

const NO_FACTS: StepFacts = {
  first: null,
  last: null,
  kinds: {},
  step_secs: null,
  recording_secs: null,
};

const NOTHING: Held = { rows: NO_ROWS, facts: NO_FACTS, kind: null, around: null, later: 0 };

/** The recorded steps of a run that the page holds: however long the run is, a few thousand of them.
 *
 * Where the selection is between two that are held and others lie between, those around it are asked for;
 * until they are there, the step before stays the selected one. */
export class HeldSteps {
  private held = $state.raw<Held>(NOTHING);

  // Of their own, so that other changes of the selection change nothing here.
  private readonly wantedStep = $derived(selection.current.step);
  private readonly wantedKind = $derived(selection.current.kind);

  readonly rows = $derived(this.held.rows);
  readonly facts = $derived(this.held.facts);
  readonly kinds = $derived(Object.keys(this.facts.kinds).sort());
  /** The selected kind, if there are steps of it. */
  readonly kind = $derived(
    this.wantedKind !== null && this.kinds.includes(this.wantedKind) ? this.wantedKind : null,
  );
  private readonly row = $derived.by(() =>
    this.wantedStep === null ? this.rows.step.length - 1 : this.rowOf(this.wantedStep),
  );
  private readonly isOfKind = $derived(this.held.kind === this.kind);
  /** Whether the step that the selection means is held. */
  readonly isKnown = $derived(this.isOfKind && (this.row >= 0 || this.rows.step.length === 0));
  private last: RecordedStep | null = null;
  /** The step that the selection means, or meant last. */
  readonly at = $derived.by(() => {
    if (this.isKnown) this.last = this.read(this.row);
    return this.last;
  });

  private queue: Promise<void> = Promise.resolve();

  constructor(
    private readonly connector: Connector,
    private readonly id: string,
    /** Whether the run is still shown: with whoever shows it, what is derived here is gone. */
    private readonly isShown: () => boolean,
  ) {}

  /** Asks for what is new. */
  async grow(): Promise<void> {
    await this.queued(() => this.readNew());
    // Which kinds there are may be known only now.
    await this.look();
  }

  /** Asks for the steps around the selected one, unless it is held. */
  look(): Promise<void> {
    return this.queued(async () => {
      if (!this.isKnown) await this.readAround();
    });
  }

  /** Selects the step so many before or after. */
  async walk(offset: number, isLive: boolean): Promise<void> {
    const wantedAt = performance.now();
    const found = () =>
      this.isOfKind && this.row >= 0 ? rowBeside(this.rows, this.row, offset) : -1;
    if (found() < 0) {
      await this.queued(async () => {
        if (found() < 0) await this.readAround();
      });
    }
    const row = found();
    if (row < 0) return;
    const isNewest = row === this.rows.step.length - 1 && offset > 0 && isLive;
    selection.scrub({ step: isNewest ? null : this.rows.step[row]! }, wantedAt);
  }

  /** The recorded step nearest to one; where that is not known, this itself. */
  nearest(step: number): number {
    return this.rows.step[this.rowOf(step)] ?? Math.round(step);
  }

  private rowOf(step: number): number {
    const row = rowNear(this.rows, step);
    // What was asked for and is not there is nowhere.
    return row < 0 && this.held.around === step ? nearest(this.rows.step, step) : row;
  }

  private async readNew(): Promise<void> {
    const { rows, kind, later } = this.held;
    const after = rows.step.at(-1);
    if (after === undefined || later > MOST_NEW || !this.isOfKind) return this.readAround();
    const answer = await this.connector.steps(this.id, {
      kind,
      after,
      around: null,
      points: POINTS,
    });
    this.held = {
      ...this.held,
      rows: appendSteps(rows, answer.rows),
      facts: answer.facts,
      later: later + answer.rows.step.length,
    };
  }

  private async readAround(): Promise<void> {
    const [kind, around] = [this.kind, this.wantedStep];
    const query = { kind, after: null, around, points: POINTS };
    this.held = { ...(await this.connector.steps(this.id, query)), kind, around, later: 0 };
  }

  /** One after another: what is asked for last is the newest. */
  private queued(ask: () => Promise<void>): Promise<void> {
    const done = this.queue.then(() => (this.isShown() ? ask() : undefined));
    this.queue = done.catch(() => {}); // whoever asked is told; who comes next asks all the same
    return done;
  }

  private read(row: number): RecordedStep | null {
    const { step, iterations, graph } = this.rows;
    if (step[row] === undefined) return null;
    return { step: step[row], iterations: iterations[row]!, graph: graph[row]! };
  }
}
