import type { GraphAnswer } from "../lib/graph/answer";
import { type Moment, ratio } from "../lib/graph/moment";
import { heatmapMatrix } from "../lib/heatmap";
import type { ScalarRows } from "../lib/series";
import { withSharedBins } from "../lib/sharedBins";
import { UPDATE_RATIO } from "../lib/statistics";
import type {
  Connector,
  Heatmap,
  HeatmapQuery,
  HistoryRow,
  MomentQuery,
  Note,
  Picture,
  RunChange,
  RunDetail,
  RunList,
  ScalarColumns,
  ScalarsQuery,
  Site,
  SiteQuery,
  SketchesQuery,
  SketchSlice,
  StepFacts,
  Steps,
  StepsQuery,
  Summary,
  Table,
  Told,
  ValuesQuery,
} from "./connector";
import { readNumber } from "./json";
import type { Beside, Call, EventRow, KeptRow, KeptSample, SampleRow } from "./kept";
import type { FrameSource, Query, Transport, Watcher } from "./transport";

const MOST_POINTS = 30_000;
const HISTORY_FACTS = ["step", "kind", "iteration", "dtype", "shape"];

/** Asks the addresses of `docs/http.md`, whichever way their answers come. */
export class Client implements Connector {
  readonly about: readonly string[];
  readonly hasIterations: boolean;
  readonly hasKinds: boolean;

  constructor(private readonly transport: Transport) {
    this.about = transport.about ?? [];
    this.hasIterations = transport.hasIterations ?? true;
    this.hasKinds = transport.hasKinds ?? true;
  }

  stepsWith(path: string, query: Query): number[] {
    return this.transport.stepsWith?.(path, query) ?? [];
  }

  async runs(signal?: AbortSignal): Promise<RunList> {
    const { runs, problems } = await this.json<RunList>("runs", signal);
    return { runs: runs.map(readSummary), problems };
  }

  async run(id: string, signal?: AbortSignal): Promise<RunDetail> {
    const detail = await this.json<RunDetail>(runPath(id), signal);
    return { ...detail, summary: readSummary(detail.summary) };
  }

  async sites(id: string, signal?: AbortSignal): Promise<Site[]> {
    const table = await this.arrow(`${runPath(id)}/sites`, {}, signal);
    return table
      .toArray()
      .map((row) => ({ ...row, aliases: Array.from(row.aliases ?? []) }) as Site);
  }

  async steps(id: string, query: StepsQuery, signal?: AbortSignal): Promise<Steps> {
    const table = await this.arrow(`${runPath(id)}/steps`, { ...query }, signal);
    const column = <T>(name: string) => Array.from(table.getChild(name).toArray() as ArrayLike<T>);
    return {
      rows: {
        step: column("step"),
        place: column("place"),
        iterations: column("iterations"),
        kind: column("kind"),
        graph: column("graph"),
      },
      facts: JSON.parse(table.schema.metadata!.get("steps")!) as StepFacts,
    };
  }

  async scalars(id: string, query: ScalarsQuery, signal?: AbortSignal): Promise<ScalarColumns> {
    const table = await this.arrow(`${runPath(id)}/scalars`, { ...query }, signal);
    const settled = JSON.parse(table.schema.metadata!.get("settled")!) as number | null;
    return { ...(table.toColumns() as unknown as ScalarRows), settled };
  }

  async notes(id: string, signal?: AbortSignal): Promise<Told<Note>> {
    const path = `${runPath(id)}/notes`;
    const answer = await this.json<{ notes: Note[]; left_out: number }>(path, signal);
    return { rows: answer.notes, leftOut: answer.left_out };
  }

  async heatmap(id: string, query: HeatmapQuery, signal?: AbortSignal): Promise<Heatmap> {
    const table = await this.arrow(`${runPath(id)}/heatmap`, { ...query }, signal);
    const steps = JSON.parse(table.schema.metadata?.get("columns") ?? "[]") as [number, number][];
    const column = (name: string) => table.getChild(name).toArray() as ArrayLike<number>;
    const [site, value, nans, infs] = ["site", "value", "nans", "infs"].map(column);
    const cells = {
      site: site!,
      column: column("column"),
      value: value!,
      nans: nans!,
      infs: infs!,
    };
    const fullest = Number(table.schema.metadata?.get("fullest") ?? 1);
    const read = JSON.parse(table.schema.metadata?.get("steps") ?? "null") as Heatmap["steps"];
    return { ...heatmapMatrix(cells, steps, 0), fullest, steps: read };
  }

  async graph(id: string, step: number, signal?: AbortSignal): Promise<GraphAnswer> {
    return this.json<GraphAnswer>(`${runPath(id)}/graph`, signal, { step });
  }

  async moment(id: string, query: MomentQuery, signal?: AbortSignal): Promise<Moment> {
    if (query.statistic === UPDATE_RATIO) return this.updateRatio(id, query.step, signal);
    const table = await this.arrow(`${runPath(id)}/moment`, { ...query }, signal);
    const column = (name: string) => table.getChild(name).toArray() as ArrayLike<number>;
    // Of one sample there is none.
    const shapes = table.names.includes("shape") ? table.getChild("shape") : null;
    return {
      site: column("site"),
      iteration: column("iteration"),
      value: column("value"),
      nans: column("nans"),
      infs: column("infs"),
      shape: (row) => Array.from((shapes?.at(row) ?? []) as ArrayLike<number>),
    };
  }

  private async updateRatio(id: string, step: number, signal?: AbortSignal): Promise<Moment> {
    const ask = (quantity: string) => this.moment(id, { step, quantity, statistic: "rms" }, signal);
    const [update, value] = await Promise.all([ask("update"), ask("value")]);
    return ratio(update, value);
  }

  async history(id: string, query: SiteQuery, signal?: AbortSignal): Promise<HistoryRow[]> {
    const { site, quantity, limit: points } = query;
    const path = `${runPath(id)}/sites/${site}/history`;
    const ask = (limit: number) => this.arrow(path, { quantity, points: limit }, signal);
    let table = await ask(points);
    const iterations = table.getChild("iteration").toArray() as ArrayLike<number>;
    const deepest = 1 + Array.from(iterations).reduce((most, each) => Math.max(most, each), 0);
    // The server thins iterations like steps, and so may leave out some.
    if (deepest > 1) table = await ask(Math.min(MOST_POINTS, points * deepest));
    const rest = table.names.filter((name) => !HISTORY_FACTS.includes(String(name)));
    // Apart: objects of many properties take three times the memory.
    const statistics = table.select(rest).toArray() as Record<string, number>[];
    const rows = table.select(HISTORY_FACTS).toArray() as Omit<HistoryRow, "statistics">[];
    return rows.map((row, i) => ({
      ...row,
      shape: Array.from(row.shape),
      statistics: statistics[i]!,
    }));
  }

  async sketches(id: string, query: SketchesQuery, signal?: AbortSignal): Promise<SketchSlice[]> {
    const { site, limit: columns, ...asked } = query;
    const path = `${runPath(id)}/sites/${site}/sketches`;
    const table = await this.arrow(path, { ...asked, columns }, signal);
    return withSharedBins(table.toArray() as SketchSlice[]);
  }

  async eventLog(id: string, signal?: AbortSignal): Promise<Told<EventRow>> {
    const path = `${runPath(id)}/event_log`;
    const answer = await this.json<{ events: EventRow[]; left_out: number }>(path, signal);
    return { rows: answer.events, leftOut: answer.left_out };
  }

  async calls(id: string, step: number, signal?: AbortSignal): Promise<Beside<Call>> {
    return beside(await this.arrow(`${runPath(id)}/calls`, { step }, signal));
  }

  async samples(id: string, step: number, signal?: AbortSignal): Promise<KeptSample[]> {
    return (await this.arrow(`${runPath(id)}/samples`, { step }, signal)).toArray() as KeptSample[];
  }

  async values(id: string, query: ValuesQuery, signal?: AbortSignal): Promise<Beside<KeptRow>> {
    const { site, step, quantity } = query;
    const path = `${runPath(id)}/sites/${site}/values`;
    return beside(await this.arrow(path, { step, quantity }, signal));
  }

  async siteSamples(id: string, query: SiteQuery, signal?: AbortSignal): Promise<SampleRow[]> {
    const { site, quantity, limit: points } = query;
    const path = `${runPath(id)}/sites/${site}/samples`;
    return (await this.arrow(path, { quantity, points }, signal)).toArray() as SampleRow[];
  }

  custom(id: string, query: Query, signal?: AbortSignal): Promise<Picture> {
    return this.json<Picture>(`${runPath(id)}/custom`, signal, query);
  }

  customFrame(): Promise<FrameSource> {
    return this.transport.frame("custom/frame");
  }

  labOf(id: string): string | null {
    return this.transport.page?.("lab.html", { run: id }) ?? null;
  }

  async plotly(): Promise<string> {
    return new TextDecoder().decode(await this.transport.fetch("custom/plotly.js", {}));
  }

  watchRuns(watcher: Watcher<Summary[]>): () => void {
    return this.transport.watch<{ runs: Summary[] }>("events", {
      onChange: ({ runs }) => watcher.onChange(runs.map(readSummary)),
      onConnection: watcher.onConnection,
    });
  }

  watchRun(id: string, watcher: Watcher<RunChange>): () => void {
    return this.transport.watch<RunChange>(`${runPath(id)}/events`, {
      onChange: ({ summary, rows }) => watcher.onChange({ summary: readSummary(summary), rows }),
      onConnection: watcher.onConnection,
    });
  }

  async json<T>(path: string, signal?: AbortSignal, query: Query = {}): Promise<T> {
    const bytes = await this.transport.fetch(path, query, signal);
    return JSON.parse(new TextDecoder().decode(bytes)) as T;
  }

  async arrow(path: string, query: Query, signal?: AbortSignal): Promise<Table> {
    // Not needed for the list of runs, so not part of what the first page loads.
    const [{ tableFromIPC }, bytes] = await Promise.all([
      import("./arrow"),
      this.transport.fetch(path, query, signal),
    ]);
    return tableFromIPC(bytes);
  }
}

function beside<T>(table: Table): Beside<T> {
  const said = JSON.parse(table.schema.metadata?.get("beside") ?? "[null,null]");
  const [before, after] = said as [number | null, number | null];
  return { rows: table.toArray() as T[], before, after };
}

export function runPath(id: string): string {
  return `runs/${id.split("/").map(encodeURIComponent).join("/")}`;
}

function readSummary(summary: Summary): Summary {
  return {
    ...summary,
    loss: readNumber(summary.loss),
    loss_curve: summary.loss_curve.map(readNumber),
  };
}
