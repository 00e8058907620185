import { type HeatmapMatrix, heatmapMatrix } from "../lib/heatmap";
import { runPath } from "./client";
import type { Connector, Table } from "./connector";
import { readNumber } from "./json";

/** The questions of Numerics, Flow and Compare: see `docs/http.md`. */

export interface NumberFormat {
  name: string;
  overflow: number;
  negative_overflow: number;
  underflow: number;
  normal: number;
}

export async function formats(from: Connector, signal?: AbortSignal): Promise<NumberFormat[]> {
  return (await from.json<{ formats: NumberFormat[] }>("formats", signal)).formats;
}

/** How much was read of how much there is. */
export type Read = readonly [read: number, of: number];

export interface PrecisionMatrices {
  overflow: HeatmapMatrix;
  underflow: HeatmapMatrix;
  subnormal: HeatmapMatrix;
  lost: HeatmapMatrix;
  steps: Read;
  sites: Read;
}

export interface PrecisionQuery {
  quantity: string;
  format: string;
  scale: string;
  columns: number;
  /** Only these; null for all. */
  sites: readonly number[] | null;
  iteration: number | null;
  /** One sample alone; null for whole batches. */
  sample: string | null;
  /** Steps of one kind alone; null for all. */
  kind: string | null;
}

export async function precision(
  from: Connector,
  id: string,
  { sites, ...query }: PrecisionQuery,
  signal?: AbortSignal,
): Promise<PrecisionMatrices> {
  const asked = { ...query, sites: sites?.join(",") ?? null };
  const table = await from.arrow(`${runPath(id)}/precision`, asked, signal);
  const overflow = matrixOf(table, "overflow");
  const underflow = matrixOf(table, "underflow");
  const lost = { ...overflow, values: overflow.values.map((v, i) => v + underflow.values[i]!) };
  const subnormal = matrixOf(table, "subnormal");
  return {
    overflow,
    underflow,
    subnormal,
    lost,
    steps: said(table, "steps"),
    sites: said(table, "sites"),
  };
}

export interface Losses {
  overflow: number;
  underflow: number;
  subnormal: number;
  uncertain: number;
}

export interface SiteExponents {
  site: number;
  dtype: string;
  count: number;
  zeros: number;
  nans: number;
  infs: number;
  min: number | null;
  max: number | null;
  exponents: { exponent: number[]; negative: number[]; positive: number[] };
  formats: Record<string, Losses & { scale: number; scaled: Losses }>;
}

export interface ExponentsQuery {
  sites: readonly number[];
  step: number;
  quantity: string;
  iteration: number | null;
  formats: readonly string[];
  sample: string | null;
}

/** The steps at which there are exponents, where there are none at others. */
export function stepsWithExponents(from: Connector, id: string, quantity: string): number[] {
  return from.stepsWith(`${runPath(id)}/exponents`, { quantity });
}

export async function exponents(
  from: Connector,
  id: string,
  { sites, formats: names, ...query }: ExponentsQuery,
  signal?: AbortSignal,
): Promise<SiteExponents[]> {
  const asked = { ...query, sites: sites.join(","), formats: names.join(",") };
  const path = `${runPath(id)}/exponents`;
  return (await from.json<{ sites: SiteExponents[] }>(path, signal, asked)).sites;
}

export interface FlowTensor {
  sites: number[];
  norm: number | null;
  broken: boolean;
  share: number;
  is_end: boolean;
}

export interface FlowLink {
  source: number;
  sink: number;
  part: number | null;
  share: number | null;
  is_copy: boolean;
  leads_back: boolean;
}

export interface Flow {
  step: number;
  iteration: number;
  origin: number | null;
  tensors: FlowTensor[];
  links: FlowLink[];
}

export interface FlowQuery {
  step: number;
  iteration: number | null;
  origin: number | null;
  sample: string | null;
}

export function flow(
  from: Connector,
  id: string,
  query: FlowQuery,
  signal?: AbortSignal,
): Promise<Flow> {
  return from.json<Flow>(`${runPath(id)}/flow`, signal, { ...query });
}

export interface FlowHistory {
  norm: HeatmapMatrix;
  skip: HeatmapMatrix;
  steps: Read;
}

export interface FlowHistoryQuery {
  step: number;
  iteration: number | null;
  columns: number;
  sample: string | null;
  /** Steps of one kind alone; null for all. */
  kind: string | null;
}

export async function flowHistory(
  from: Connector,
  id: string,
  query: FlowHistoryQuery,
  signal?: AbortSignal,
): Promise<FlowHistory> {
  const table = await from.arrow(`${runPath(id)}/flow_history`, { ...query }, signal);
  return {
    norm: matrixOf(table, "norm"),
    skip: matrixOf(table, "skip_share", true),
    steps: said(table, "steps"),
  };
}

export interface Difference {
  step: number;
  iteration: number;
  site: string;
  quantity: string;
  statistic: string;
  one: number | null;
  other: number | null;
  relative: number;
}

export interface Parting {
  tolerance: number;
  steps: number;
  first_step: number | null;
  last_step: number | null;
  recorded: [number, number];
  sites: number;
  all_sites: [number, number];
  compared: number;
  exact: Difference | null;
  beyond: Difference | null;
}

export async function parting(
  from: Connector,
  id: string,
  query: { with: string; tolerance: number },
  signal?: AbortSignal,
): Promise<Parting> {
  const found = await from.json<Parting>(`${runPath(id)}/parting`, signal, query);
  return { ...found, exact: readDifference(found.exact), beyond: readDifference(found.beyond) };
}

function readDifference(found: Difference | null): Difference | null {
  if (!found) return null;
  const { one, other, relative } = found;
  return {
    ...found,
    one: readNumber(one),
    other: readNumber(other),
    relative: readNumber(relative)!,
  };
}

export interface DifferencesQuery {
  with: string;
  quantity: string;
  statistic: string;
  columns: number;
  /** Null for the last. */
  iteration: number | null;
  /** Steps of one kind alone; null for all. */
  kind: string | null;
}

export interface Differences {
  one: HeatmapMatrix;
  other: HeatmapMatrix;
  steps: Read;
}

export async function differences(
  from: Connector,
  id: string,
  query: DifferencesQuery,
  signal?: AbortSignal,
): Promise<Differences> {
  const table = await from.arrow(`${runPath(id)}/differences`, { ...query }, signal);
  return {
    one: matrixOf(table, "one"),
    other: matrixOf(table, "other"),
    steps: said(table, "steps"),
  };
}

interface Only {
  both: number;
  one: string[][];
  other: string[][];
}

interface ModuleRow {
  name: string;
  class: string;
  parameters: number;
  extra: string;
}

export interface Structure {
  modules: {
    both: number;
    rows: { name: string; one: ModuleRow | null; other: ModuleRow | null }[];
  };
  sites: Only;
  edges: Only | null;
  /** The steps whose graphs are compared; null of a run that has none. */
  graphs: readonly [one: number | null, other: number | null];
}

export function structure(
  from: Connector,
  id: string,
  query: { with: string; step: number | null },
  signal?: AbortSignal,
): Promise<Structure> {
  return from.json<Structure>(`${runPath(id)}/structure`, signal, query);
}

function said(table: Table, name: string): Read {
  return JSON.parse(table.schema.metadata?.get(name) ?? "[0,0]") as [number, number];
}

/** One column of numbers as a matrix; `hasGaps` leaves out the rows in which it is NaN. */
function matrixOf(table: Table, value: string, hasGaps = false): HeatmapMatrix {
  const columns = JSON.parse(table.schema.metadata?.get("columns") ?? "[]") as [number, number][];
  const read = (name: string) => table.getChild(name).toArray() as ArrayLike<number>;
  const all = {
    site: read("site"),
    column: read("column"),
    value: read(value),
    nans: read("nans"),
    infs: read("infs"),
  };
  if (!hasGaps) return heatmapMatrix(all, columns, 0);
  const kept = Array.from(all.value, (_, i) => i).filter((i) => !Number.isNaN(all.value[i]!));
  const take = (from: ArrayLike<number>) => kept.map((i) => Number(from[i]));
  return heatmapMatrix(
    {
      site: take(all.site),
      column: take(all.column),
      value: take(all.value),
      nans: take(all.nans),
      infs: take(all.infs),
    },
    columns,
    0,
  );
}
