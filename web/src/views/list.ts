import type { Component } from "svelte";
import type { OpenRun } from "../state/run.svelte";

interface ViewEntry {
  /** As it stands in the address. */
  readonly name: string;
  readonly label: string;
  /** The path of an icon of 16 × 16, drawn with thin lines. */
  readonly icon: string;
  /** Its code, loaded when it is first seen. A view has no props: it reads the contexts and the selection. */
  readonly load: () => Promise<{ default: Component }>;
  /** Whether this run has the view at all; without it, every run has. */
  readonly isShown?: (run: OpenRun) => boolean;
  /** A number beside its label, if it is not 0. */
  readonly count?: (run: OpenRun, pins: readonly string[]) => number;
}

/** Every view, as the rail lists them. */
export const VIEW_LIST = [
  {
    name: "overview",
    label: "Overview",
    icon: "M2 13.500h12M3 11V7m3.5 4V3m3.5 8V6m3.5 5V8.5",
    load: () => import("./Overview.svelte"),
  },
  {
    name: "findings",
    label: "Findings",
    icon: "M8 1.500 14.750 13.500H1.250zM8 6v3.500M8 11.250v.5",
    load: () => import("./Findings.svelte"),
    count: (run: OpenRun) => run.findings.length,
  },
  {
    name: "graph",
    label: "Graph",
    icon: "M5.500 1.500h5v4h-5zM1.500 10.500h5v4h-5zM9.500 10.500h5v4h-5zM8 5.500v2.500M4 10.500V8h8v2.500",
    load: () => import("./Graph.svelte"),
  },
  {
    name: "heatmap",
    label: "Heatmap",
    icon: "M2 2.500h5v5H2zM9 2.500h5v5H9zM2 9.500h5v5H2zM9 9.500h5v5H9z",
    load: () => import("./Heatmap.svelte"),
  },
  {
    name: "tensor",
    label: "Tensor",
    icon: "M1.5 13.500C5 13.5 5.5 3 8 3s3 10.5 6.5 10.5",
    load: () => import("./Tensor.svelte"),
  },
  {
    name: "pins",
    label: "Pins",
    icon: "M1.500 2.500h3.500v11H1.500zM6.250 2.500h3.500v11h-3.500zM11 2.500h3.500v11H11z",
    load: () => import("./Pins.svelte"),
    count: (_: OpenRun, pins: readonly string[]) => pins.length,
  },
  {
    name: "numerics",
    label: "Numerics",
    icon: "M1.500 13.500h13M3 13.500V10M5.500 13.500V7M8 13.500V3M10.500 13.500V6M13 13.500V9.500",
    load: () => import("./Numerics.svelte"),
  },
  {
    name: "flow",
    label: "Flow",
    icon: "M4 1.500c0 5 3 4 3 7v6M7 14.500h2M12 1.500c0 5-3 4-3 7v6M8 1.500v5",
    load: () => import("./Flow.svelte"),
  },
  {
    name: "compare",
    label: "Compare",
    icon: "M2 2.500h4.500v11H2zM9.500 2.500H14v11H9.500zM3.500 5.500h1.500M11 5.500h1.500M3.500 8h1.500M11 10.500h1.500",
    load: () => import("./Compare.svelte"),
  },
  {
    name: "curves",
    label: "Curves",
    icon: "M2 2.500v11h12M4 9.500l3-4 2.500 3L14 3.500",
    load: () => import("./Curves.svelte"),
  },
  {
    name: "calls",
    label: "Calls",
    icon: "M5.500 3.500 1.500 8l4 4.500M10.500 3.500l4 4.500-4 4.500M9.250 2.500l-2.500 11",
    load: () => import("./Calls.svelte"),
  },
  {
    name: "log",
    label: "Log",
    icon: "M5.500 4h8.500M5.500 8h8.500M5.500 12h8.500M2.250 4h.5M2.250 8h.5M2.250 12h.5",
    load: () => import("./Log.svelte"),
    count: (run: OpenRun) =>
      run.events.length + run.notes.length + run.leftOut.events + run.leftOut.notes,
  },
  {
    name: "custom",
    label: "Custom",
    icon: "M2 12.500 6 8.500 2 4.500M8 12.500h6",
    load: () => import("./Custom.svelte"),
    isShown: (run) => run.detail?.custom != null,
  },
] as const satisfies readonly ViewEntry[];

export type View = (typeof VIEW_LIST)[number]["name"];
export const VIEWS: readonly (ViewEntry & { readonly name: View })[] = VIEW_LIST;

export function viewNamed(name: string | undefined) {
  return VIEWS.find((view) => view.name === name);
}

const DIGITS = 9;

/** The key of a view: the first nine have 1 to 9, those after them the same with Shift. */
export function keyOf(name: string): string {
  const place = VIEWS.findIndex((view) => view.name === name);
  return place < DIGITS ? `${place + 1}` : `Shift ${place + 1 - DIGITS}`;
}

/** The view whose key was pressed. */
export function viewOfKey({ key, code, shiftKey }: KeyboardEvent) {
  if (/^[1-9]$/.test(key)) return VIEWS[Number(key) - 1];
  // With Shift, the key of a digit gives whatever stands above it.
  const digit = shiftKey ? /^Digit([1-9])$/.exec(code) : null;
  return digit ? VIEWS[DIGITS + Number(digit[1]) - 1] : undefined;
}
