import type { Difference } from "../connectors/analyses";
import { formatInteger, formatNumber, formatValue } from "./format";
import type { HeatmapMatrix } from "./heatmap";
import { quantityLabel } from "./statistics";

/** The other runs that the address names. A comma parts them, so one in a name is written otherwise. */
export function readWith(more: Readonly<Record<string, string>>, base: string): string[] {
  const ids = (more.with ?? "").split(",").filter(Boolean);
  const decoded = ids.map((id) => id.replaceAll("%2C", ",").replaceAll("%25", "%"));
  return [...new Set(decoded)].filter((id) => id !== base);
}

export function formatWith(ids: readonly string[]): string {
  return ids.map((id) => id.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");
}

export const COMPARE_TABS = {
  scalars: "Scalars",
  differences: "Differences",
  tensor: "Tensor",
  structure: "Structure",
} as const;
export type CompareTab = keyof typeof COMPARE_TABS;

export function readTab(more: Readonly<Record<string, string>>): CompareTab {
  const tab = more.compare ?? "";
  return Object.hasOwn(COMPARE_TABS, tab) ? (tab as CompareTab) : "scalars";
}

export const TOLERANCES = [1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5];

export function readTolerance(more: Readonly<Record<string, string>>): number {
  const found = Number(more.tolerance);
  return more.tolerance && Number.isFinite(found) && found >= 0 ? found : 1e-3;
}

export type DifferenceKind = "ratio" | "relative";

/** How two runs differ in each cell: by the log2 of their ratio, or relative to the larger. */
export function differenceMatrix(
  one: HeatmapMatrix,
  other: HeatmapMatrix,
  kind: DifferenceKind,
): HeatmapMatrix {
  const values = one.values.map((a, i) =>
    kind === "ratio" ? logRatio(a, other.values[i]!) : relative(a, other.values[i]!),
  );
  return { ...one, values };
}

function logRatio(one: number, other: number): number {
  if (one === other) return 0;
  return one * other > 0 ? Math.log2(other / one) : Number.NaN;
}

function relative(one: number, other: number): number {
  if (one === other) return 0;
  return (other - one) / Math.max(Math.abs(one), Math.abs(other));
}

export interface ConfigRow {
  name: string;
  /** What each run says, in their order; nothing where it says nothing. */
  values: (string | null)[];
}

/** Entries of configurations that are not the same in all runs; those of nested ones by their path. */
export function configRows(configs: readonly Record<string, unknown>[]): ConfigRow[] {
  const flat = configs.map((config) => new Map(flatten(config, "")));
  const names = [...new Set(flat.flatMap((entries) => [...entries.keys()]))];
  return names
    .map((name) => ({ name, values: flat.map((entries) => entries.get(name) ?? null) }))
    .filter(({ values }) => new Set(values).size > 1);
}

function* flatten(value: unknown, path: string): Generator<[string, string]> {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    yield [path, formatValue(value)];
  else
    for (const [name, each] of Object.entries(value))
      yield* flatten(each, path ? `${path}.${name}` : name);
}

/** A difference in one line, without the place where it is. */
export function sayDifference({ statistic, one, other, relative: apart }: Difference): string {
  const factor = Number.isFinite(apart) ? ` (${formatNumber(apart)} apart)` : "";
  return `${statistic.replace("_", " ")} ${formatNumber(one)} and ${formatNumber(other)}${factor}`;
}

export function sayPlace({ step, iteration, site, quantity }: Difference): string {
  const within = iteration > 0 ? `, iteration ${iteration}` : "";
  return `step ${formatInteger(step)}${within}, ${site}, ${quantityLabel(quantity)}`;
}
