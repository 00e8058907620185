interface Placed {
  name: string;
  module: string;
}

/** Sites of one module beside each other, modules in the order in which they are first seen. */
export function groupByModule<T extends Placed>(sites: readonly T[]): T[] {
  const groups = new Map<string, T[]>();
  for (const site of sites) {
    const group = groups.get(site.module);
    if (group) group.push(site);
    else groups.set(site.module, [site]);
  }
  return [...groups.values()].flat();
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

/** The labels of the rows from `first` to `last` (with a fraction: where the view ends) that have room,
 * in order; others are left out. */
export function rowLabels(
  sites: readonly Placed[],
  first: number,
  last: number,
  rowHeight: number,
): RowLabel[] {
  const labels: RowLabel[] = [];
  const isPerRow = rowHeight >= LABEL_HEIGHT - 1;
  let freeFrom = Number.NEGATIVE_INFINITY;
  for (let row = first; row < Math.min(last, sites.length); row++) {
    const { name, module } = sites[row]!;
    const startsModule = row === 0 || sites[row - 1]!.module !== module;
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

/** Rows at which the first part of the module's name changes: where lines help the eye. */
export function groupStarts(sites: readonly Placed[]): number[] {
  const starts: number[] = [];
  for (let row = 1; row < sites.length; row++) {
    if (blockOf(sites[row]!.module) !== blockOf(sites[row - 1]!.module)) starts.push(row);
  }
  return starts;
}

/** `blocks.3` of `blocks.3.attn.proj`: up to the first number, or the first part. */
export function blockOf(module: string): string {
  return /^[^.]*(?:\.\d+)?/.exec(module)?.[0] ?? module;
}
