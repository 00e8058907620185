import { heatmapMatrix } from "../lib/heatmap";
import { type IterationRow, lastIterations } from "../lib/iterations";
import type {
  Connector,
  HeatmapQuery,
  History,
  Note,
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
  Watcher,
} from "./connector";
import { watchEvents } from "./events";
import { readNumber } from "./json";

const MOST_POINTS = 30_000;

type Query = Record<string, string | number | null>;

/** The viewer's own HTTP interface: see `docs/http.md`. */
export class HttpConnector implements Connector {
  constructor(private readonly base = "api/") {}

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
      recorded: Array.from(columns.recorded as ArrayLike<boolean>),
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

  async history(id: string, query: SiteQuery, signal?: AbortSignal): Promise<History> {
    const { site, quantity, limit: points } = query;
    const path = `${runPath(id)}/sites/${site}/history`;
    type Row = Record<string, number> & IterationRow & { dtype: string; shape: number[] };
    const ask = async (limit: number) => {
      const table = await this.arrow(path, { quantity, points: limit }, signal);
      return table.toArray() as Row[];
    };
    let all = await ask(points);
    const deepest = all.reduce((most, row) => Math.max(most, row.iteration + 1), 1);
    // The server thins iterations like steps, and so may leave out the last ones.
    if (deepest > 1) all = await ask(Math.min(MOST_POINTS, points * deepest));
    const { rows, iterations } = lastIterations(all);
    return {
      step: rows.map((row) => row.step),
      rows,
      iterations,
      dtype: rows.map((row) => row.dtype),
      shape: rows.map((row) => Array.from(row.shape)),
    };
  }

  async sketches(id: string, query: SiteQuery, signal?: AbortSignal): Promise<SketchSlice[]> {
    const { site, quantity, limit: columns } = query;
    const path = `${runPath(id)}/sites/${site}/sketches`;
    const table = await this.arrow(path, { quantity, columns }, signal);
    return table.toArray() as SketchSlice[];
  }

  watchRuns(watcher: Watcher<Summary[]>): () => void {
    return watchEvents<{ runs: Summary[] }>(`${this.base}events`, {
      onChange: ({ runs }) => watcher.onChange(runs.map(readSummary)),
      onConnection: watcher.onConnection,
    });
  }

  watchRun(id: string, watcher: Watcher<RunChange>): () => void {
    return watchEvents<RunChange>(`${this.base}${runPath(id)}/events`, {
      onChange: ({ summary, rows }) => watcher.onChange({ summary: readSummary(summary), rows }),
      onConnection: watcher.onConnection,
    });
  }

  private async json<T>(path: string, signal?: AbortSignal): Promise<T> {
    return (await (await this.fetch(path, {}, signal)).json()) as T;
  }

  private async arrow(path: string, query: Query, signal?: AbortSignal) {
    // Not needed for the list of runs, so not part of what the first page loads.
    const [{ tableFromIPC }, response] = await Promise.all([
      import("./arrow"),
      this.fetch(path, query, signal),
    ]);
    return tableFromIPC(await response.arrayBuffer());
  }

  private async columns(path: string, query: Query, signal?: AbortSignal) {
    return (await this.arrow(path, query, signal)).toColumns() as Record<
      string,
      ArrayLike<unknown>
    >;
  }

  private async fetch(path: string, query: Query, signal?: AbortSignal): Promise<Response> {
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      if (value !== null) parameters.set(name, String(value));
    }
    const text = parameters.toString();
    const response = await fetch(this.base + path + (text ? `?${text}` : ""), { signal });
    if (!response.ok) throw new Error(await errorOf(response));
    return response;
  }
}

function runPath(id: string): string {
  return `runs/${id.split("/").map(encodeURIComponent).join("/")}`;
}

function readSummary(summary: Summary): Summary {
  return {
    ...summary,
    loss: readNumber(summary.loss),
    loss_curve: summary.loss_curve.map(readNumber),
  };
}

async function errorOf(response: Response): Promise<string> {
  try {
    const { error } = (await response.json()) as { error?: string };
    if (error) return error;
  } catch {
    // A proxy in between may answer with a page of its own.
  }
  return `The viewer answered ${response.status} ${response.statusText}.`;
}
