import type { GraphAnswer } from "../lib/graph/answer";
import { type Moment, ratio } from "../lib/graph/moment";
import { heatmapMatrix } from "../lib/heatmap";
import { UPDATE_RATIO } from "../lib/statistics";
import type {
  Connector,
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
  SketchSlice,
  StepColumns,
  Summary,
  Table,
  ValuesQuery,
} from "./connector";
import { readNumber } from "./json";
import type { Beside, Call, EventRow, KeptRow, KeptSample, SampleRow } from "./kept";
import type { FrameSource, Query, Transport, Watcher } from "./transport";

const MOST_POINTS = 30_000;

const texts = new Map<string, string>();

/** One text for all that are equal: a run has few kinds and graphs, and a row for each of its steps. */
function interned(text: string): string {
  const known = texts.get(text);
  if (known !== undefined) return known;
  texts.set(text, text);
  return text;
}

/** Asks the addresses of `docs/http.md`, whichever way their answers come. */
export class Client implements Connector {
  readonly about: readonly string[];

  constructor(private readonly transport: Transport) {
    this.about = transport.about ?? [];
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

  async steps(id: string, after: number | null, signal?: AbortSignal): Promise<StepColumns> {
    const columns = await this.columns(`${runPath(id)}/steps`, { after }, signal);
    return {
      step: Array.from(columns.step as ArrayLike<number>),
      kind: Array.from(columns.kind as ArrayLike<string>, interned),
      iterations: Array.from(columns.iterations as ArrayLike<number>),
      graph: Array.from(columns.graph as ArrayLike<string>, interned),
      recorded: Array.from(columns.recorded as ArrayLike<boolean>),
      started_at: Array.from(columns.started_at as ArrayLike<number>),
      duration_secs: Array.from(columns.duration_secs as ArrayLike<number>),
      recording_secs: Array.from(columns.recording_secs as ArrayLike<number>),
    };
  }

  async scalars(id: string, query: ScalarsQuery, signal?: AbortSignal): Promise<ScalarColumns> {
    const columns = await this.columns(`${runPath(id)}/scalars`, { ...query }, signal);
    return columns as unknown as ScalarColumns;
  }

  async notes(id: string, signal?: AbortSignal): Promise<Note[]> {
    return (await this.json<{ notes: Note[] }>(`${runPath(id)}/notes`, signal)).notes;
  }

  async heatmap(id: string, query: HeatmapQuery, signal?: AbortSignal) {
    const table = await this.arrow(`${runPath(id)}/heatmap`, { ...query }, signal);
    const steps = JSON.parse(table.schema.metadata?.get("columns") ?? "[]") as [number, number][];
    const column = (name: string) => table.getChild(name).toArray() as ArrayLike<number>;
    const [site, value, nans, infs] = ["site", "value", "nans", "infs"].map(column);
    return heatmapMatrix(
      { site: site!, column: column("column"), value: value!, nans: nans!, infs: infs! },
      steps,
      0,
    );
  }

  async graph(id: string, step: number, signal?: AbortSignal): Promise<GraphAnswer> {
    return this.json<GraphAnswer>(`${runPath(id)}/graph`, signal, { step });
  }

  async moment(id: string, query: MomentQuery, signal?: AbortSignal): Promise<Moment> {
    if (query.statistic === UPDATE_RATIO) return this.updateRatio(id, query.step, signal);
    const table = await this.arrow(`${runPath(id)}/moment`, { ...query }, signal);
    const column = (name: string) => table.getChild(name).toArray() as ArrayLike<number>;
    const shapes = table.getChild("shape");
    return {
      site: column("site"),
      iteration: column("iteration"),
      value: column("value"),
      nans: column("nans"),
      infs: column("infs"),
      shape: (row) => Array.from(shapes.at(row) as ArrayLike<number>),
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
    type Row = Record<string, number> & { dtype: string; shape: number[] };
    const ask = async (limit: number) => {
      const table = await this.arrow(path, { quantity, points: limit }, signal);
      return table.toArray() as Row[];
    };
    let all = await ask(points);
    const deepest = all.reduce((most, row) => Math.max(most, row.iteration! + 1), 1);
    // The server thins iterations like steps, and so may leave out some.
    if (deepest > 1) all = await ask(Math.min(MOST_POINTS, points * deepest));
    return all.map((row) => ({
      step: row.step!,
      iteration: row.iteration!,
      dtype: row.dtype,
      shape: Array.from(row.shape),
      statistics: row,
    }));
  }

  async sketches(id: string, query: SiteQuery, signal?: AbortSignal): Promise<SketchSlice[]> {
    const { site, quantity, limit: columns } = query;
    const path = `${runPath(id)}/sites/${site}/sketches`;
    const table = await this.arrow(path, { quantity, columns }, signal);
    return table.toArray() as SketchSlice[];
  }

  async eventLog(id: string, signal?: AbortSignal): Promise<EventRow[]> {
    const { events } = await this.json<{ events: EventRow[] }>(`${runPath(id)}/event_log`, signal);
    return events;
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

  private async columns(path: string, query: Query, signal?: AbortSignal) {
    return (await this.arrow(path, query, signal)).toColumns() as Record<
      string,
      ArrayLike<unknown>
    >;
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
