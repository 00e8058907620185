import type { BlockOf } from "./blocks";

interface Placed {
  name: string;
  module: string;
}

/** What is seen when a step ends, whatever the place that it belongs to. */
const OWNED = new Set(["parameter", "buffer", "optimizer"]);

/** In the order of the network: sites of one module beside each other, modules in the order in which they
 * are first seen. What belongs to the whole, such as its outputs and the loss, stands where it is seen. */
export function inNetworkOrder<T extends Placed & { tensor_class: string }>(
  sites: readonly T[],
): T[] {
  const groups: T[][] = [];
  const groupOf = new Map<string, T[]>();
  for (const site of sites) {
    const isOfWhole = site.module === "" && !OWNED.has(site.tensor_class);
    const last = groups.at(-1);
    const group = isOfWhole && last?.[0]?.module === "" ? last : groupOf.get(site.module);
    if (group && (!isOfWhole || group === last)) group.push(site);
    else {
      groups.push([site]);
      groupOf.set(site.module, groupOf.get(site.module) ?? groups.at(-1)!);
    }
  }
  return groups.flat();
}

export interface RowLabel {
  row: number;
  text: string;
  /** Where a module's label is, in pixels from the first site: higher than its row at the very end. */
  top: number;
  /** Whether the label speaks for its whole module, because the rows are too low for one each. */
  isModule: boolean;
}

const LABEL_HEIGHT = 12;

/** Whether rows are high enough for a label each. */
export function isLabelledByRow(rowHeight: number): boolean {
  return rowHeight >= LABEL_HEIGHT - 1;
}

/** The labels of the rows from `first` to `last` (with a fraction: where the view ends) that have room,
 * in order; others are left out. */
export function rowLabels(
  sites: readonly Placed[],
  first: number,
  last: number,
  rowHeight: number,
): RowLabel[] {
  const labels: RowLabel[] = [];
  const isPerRow = isLabelledByRow(rowHeight);
  let freeFrom = Number.NEGATIVE_INFINITY;
  for (let row = first; row < Math.min(last, sites.length); row++) {
    const { name, module } = sites[row]!;
    // What belongs to the whole has no module to speak for it.
    const startsModule = row === 0 || module === "" || sites[row - 1]!.module !== module;
    if (!isPerRow && !startsModule && row !== first) continue;
    const top = isPerRow
      ? row * rowHeight
      : Math.min(row * rowHeight, last * rowHeight - LABEL_HEIGHT);
    if (top < freeFrom) continue;
    labels.push({ row, top, text: isPerRow ? name : module || name, isModule: !isPerRow });
    freeFrom = top + (isPerRow ? 0 : LABEL_HEIGHT);
  }
  return labels;
}

/** Rows at which another block begins: where lines help the eye. */
export function groupStarts(sites: readonly Placed[], blockOf: BlockOf): number[] {
  const starts: number[] = [];
  const groupOf = ({ module }: Placed) => blockOf(module) || module;
  for (let row = 1; row < sites.length; row++) {
    if (groupOf(sites[row]!) !== groupOf(sites[row - 1]!)) starts.push(row);
  }
  return starts;
}

/** What shows every step and row again: a heatmap keeps in the address what it is zoomed into. */
export const ALL_CELLS = { range: "", top: "", bottom: "" } as const;

/** The first and the last of the rows whose names a heatmap is zoomed into, if they are there. */
export function zoomedRows(
  { top, bottom }: Readonly<Record<string, string>>,
  sites: readonly { name: string }[],
): { first: number; last: number } | null {
  const first = top ? sites.findIndex(({ name }) => name === top) : -1;
  const last = first < 0 ? -1 : sites.findIndex(({ name }) => name === bottom);
  return last < first || first < 0 ? null : { first, last };
}
