import type { ScaleName } from "./scale";
import type { AxisName } from "./sketch";

export const VIEWS = ["overview", "heatmap", "tensor"] as const;
export type View = (typeof VIEWS)[number];

/** All that says what the page shows. It lives in the address, so that a link shows the same. */
export interface Selection {
  run: string | null;
  view: View;
  /** Null follows the newest recorded step. */
  step: number | null;
  site: string | null;
  quantity: string;
  statistic: string;
  filter: string;
  /** Tensor classes shown in the heatmap; empty for all. */
  classes: string[];
  /** Null for the statistic's own default. */
  scale: ScaleName | null;
  axis: AxisName;
}

export const NOTHING: Selection = {
  run: null,
  view: "overview",
  step: null,
  site: null,
  quantity: "value",
  statistic: "rms",
  filter: "",
  classes: [],
  scale: null,
  axis: "log",
};

const SCALES: readonly string[] = ["linear", "robust", "log", "relative"];

/** `#/project/run/view?site=…&step=…`; what is as in `NOTHING` is left out. */
export function formatSelection(selection: Selection): string {
  if (selection.run === null) return "#/";
  const run = selection.run.split("/").map(encodeURIComponent).join("/");
  const query = new URLSearchParams();
  const put = (name: string, value: string, standard: string) => {
    if (value !== standard) query.set(name, value);
  };
  put("step", String(selection.step ?? ""), "");
  put("site", selection.site ?? "", "");
  put("quantity", selection.quantity, NOTHING.quantity);
  put("statistic", selection.statistic, NOTHING.statistic);
  put("filter", selection.filter, "");
  put("classes", selection.classes.join(","), "");
  put("scale", selection.scale ?? "", "");
  put("axis", selection.axis, NOTHING.axis);
  const text = query.toString();
  return `#/${run}/${selection.view}${text ? `?${text}` : ""}`;
}

export function parseSelection(hash: string): Selection {
  const [path = "", queryText = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decodePart);
  if (parts.length < 2) return NOTHING;
  const query = new URLSearchParams(queryText);
  const scale = query.get("scale") ?? "";
  return {
    run: `${parts[0]}/${parts[1]}`,
    view: VIEWS.find((view) => view === parts[2]) ?? NOTHING.view,
    step: parseStep(query.get("step")),
    site: query.get("site") || null,
    quantity: query.get("quantity") ?? NOTHING.quantity,
    statistic: query.get("statistic") ?? NOTHING.statistic,
    filter: query.get("filter") ?? "",
    classes: (query.get("classes") ?? "").split(",").filter(Boolean),
    scale: SCALES.includes(scale) ? (scale as ScaleName) : null,
    axis: query.get("axis") === "linear" ? "linear" : "log",
  };
}

function parseStep(text: string | null): number | null {
  const step = Number(text);
  return text && Number.isInteger(step) ? step : null;
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
