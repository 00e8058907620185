import { type View, viewNamed } from "../views/list";
import { type CurveOptions, formatCurves, PLAIN_CURVES, parseCurves } from "./curves";
import type { Direction } from "./graph/scene";
import type { ScaleName } from "./scale";
import type { AxisName } from "./sketch";

/** What the tensor view shows: statistics over steps, raw values at a step, samples over steps. */
export const TABS = ["steps", "values", "samples"] as const;
export type Tab = (typeof TABS)[number];
export type Layout = "heatmap" | "table";

/** All that says what the page shows. It lives in the address, so that a link shows the same. */
export interface Selection {
  run: string | null;
  view: View;
  /** Null follows the newest recorded step. */
  step: number | null;
  /** Only steps of this kind; null for all. */
  kind: string | null;
  /** An iteration of the step, from 0; null for the last. */
  iteration: number | null;
  site: string | null;
  quantity: string;
  statistic: string;
  filter: string;
  /** Tensor classes shown in the heatmap; empty for all. */
  classes: string[];
  /** Null for the statistic's own default. */
  scale: ScaleName | null;
  axis: AxisName;
  /** The box of the graph whose inside is shown; empty for the whole. */
  inside: string;
  /** The boxes of the graph that are open or closed other than at first. */
  toggled: string[];
  direction: Direction;
  /** One sample of the batch: its position, or `#` and its place in the data; null for all. */
  sample: string | null;
  tab: Tab;
  layout: Layout;
  /** Sites that are compared side by side. */
  pins: string[];
  curves: CurveOptions;
  /** What single views keep in the address: each reads and writes its own names. */
  more: Readonly<Record<string, string>>;
}

export const NOTHING: Selection = {
  run: null,
  view: "overview",
  step: null,
  kind: null,
  iteration: null,
  site: null,
  quantity: "value",
  statistic: "rms",
  filter: "",
  classes: [],
  scale: null,
  axis: "log",
  inside: "",
  toggled: [],
  direction: "down",
  sample: null,
  tab: "steps",
  layout: "heatmap",
  pins: [],
  curves: PLAIN_CURVES,
  more: {},
};

/** The names that this module itself puts into the address. */
const OWN: ReadonlySet<string> = new Set([
  ...Object.keys(NOTHING).filter((name) => name !== "more" && name !== "pins"),
  "pin",
]);

const SCALES: readonly string[] = ["linear", "robust", "log", "relative"];

/** `#/project/run/view?site=…&step=…`; what is as in `NOTHING` is left out. */
export function formatSelection(selection: Selection): string {
  return addressesOf(selection)(selection.view);
}

/** The addresses of the same selection in each view: all but the view is put together once. */
export function addressesOf(selection: Selection): (view: View) => string {
  if (selection.run === null) return () => "#/";
  const run = selection.run.split("/").map(encodeURIComponent).join("/");
  const query = queryOf(selection);
  return (view) => `#/${run}/${view}${query ? `?${query}` : ""}`;
}

function queryOf(selection: Selection): string {
  const query = new URLSearchParams();
  const put = (name: string, value: string, standard: string) => {
    if (value !== standard) query.set(name, value);
  };
  put("step", String(selection.step ?? ""), "");
  if (selection.kind !== null) query.set("kind", selection.kind);
  put("iteration", String(selection.iteration ?? ""), "");
  put("site", selection.site ?? "", "");
  put("quantity", selection.quantity, NOTHING.quantity);
  put("statistic", selection.statistic, NOTHING.statistic);
  put("filter", selection.filter, "");
  put("classes", selection.classes.join(","), "");
  put("scale", selection.scale ?? "", "");
  put("axis", selection.axis, NOTHING.axis);
  put("inside", selection.inside, "");
  for (const id of selection.toggled) query.append("toggled", id);
  put("direction", selection.direction, NOTHING.direction);
  put("sample", selection.sample ?? "", "");
  put("tab", selection.tab, NOTHING.tab);
  put("layout", selection.layout, NOTHING.layout);
  for (const name of selection.pins) query.append("pin", name);
  put("curves", formatCurves(selection.curves), "");
  for (const [name, value] of Object.entries(selection.more)) put(name, value, "");
  return query.toString();
}

export function parseSelection(hash: string): Selection {
  const [path = "", queryText = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decodePart);
  if (parts.length < 2) return NOTHING;
  const query = new URLSearchParams(queryText);
  const scale = query.get("scale") ?? "";
  return {
    run: `${parts[0]}/${parts[1]}`,
    view: viewNamed(parts[2])?.name ?? NOTHING.view,
    step: parseWhole(query.get("step")),
    kind: query.get("kind"),
    iteration: parseWhole(query.get("iteration")),
    site: query.get("site") || null,
    quantity: query.get("quantity") ?? NOTHING.quantity,
    statistic: query.get("statistic") ?? NOTHING.statistic,
    filter: query.get("filter") ?? "",
    classes: (query.get("classes") ?? "").split(",").filter(Boolean),
    scale: SCALES.includes(scale) ? (scale as ScaleName) : null,
    axis: query.get("axis") === "linear" ? "linear" : "log",
    inside: query.get("inside") ?? "",
    toggled: query.getAll("toggled"),
    direction: query.get("direction") === "right" ? "right" : "down",
    sample: query.get("sample") || null,
    tab: TABS.find((tab) => tab === query.get("tab")) ?? NOTHING.tab,
    layout: query.get("layout") === "table" ? "table" : "heatmap",
    pins: [...new Set(query.getAll("pin"))],
    curves: parseCurves(query.get("curves") ?? ""),
    more: Object.fromEntries([...query].filter(([name]) => !OWN.has(name))),
  };
}

function parseWhole(text: string | null): number | null {
  const number = Number(text);
  return text && Number.isInteger(number) ? number : null;
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
