/** The statistics that the page can show, what kind of number each is, and what it is called. */

export type StatisticKind = "magnitude" | "signed" | "share";

export interface Statistic {
  name: string;
  label: string;
  kind: StatisticKind;
  about: string;
  /** How a row of the history table gives it. */
  of: (row: Record<string, number>) => number;
}

const plain = (name: string, label: string, kind: StatisticKind, about: string): Statistic => ({
  name,
  label,
  kind,
  about,
  of: (row) => row[name] ?? Number.NaN,
});

const share = (
  name: string,
  label: string,
  [part, whole]: [string, string],
  about: string,
): Statistic => ({
  name,
  label,
  kind: "share",
  about,
  of: (row) => (row[part] ?? Number.NaN) / (row[whole] ?? Number.NaN),
});

export const UPDATE_RATIO = "update_ratio";

/** The quantity that a statistic is shown of: update ratios are of updates, whatever is selected. */
export function quantityFor(statistic: string, selected: string): string {
  return statistic === UPDATE_RATIO ? "update" : selected;
}

/** What a view says it shows: `grad, norm, sample 3`; update ratios are of parameters and of nothing else. */
export function shownTitle(
  { name, label }: Statistic,
  quantity: string,
  sample: string | null = null,
): string {
  if (name === UPDATE_RATIO) return label;
  return `${quantityLabel(quantity)}, ${label}${sample === null ? "" : `, sample ${sample}`}`;
}

/** Why no site has a statistic of a quantity. */
export function whyNone(statistic: Statistic, quantity: string): string {
  const title = shownTitle(statistic, quantity);
  return statistic.name === UPDATE_RATIO
    ? "No parameter has a recorded update: an update ratio is the norm of an update over that of its parameter."
    : `No site has a recorded ${title}.`;
}

/** Quantities that only parameters have. */
export function isOfParameters(quantity: string, statistic: string): boolean {
  return statistic === UPDATE_RATIO || quantity === "update" || quantity === "grad_applied";
}

export const STATISTICS: readonly Statistic[] = [
  plain("rms", "rms", "magnitude", "root of the mean square"),
  plain("abs_max", "abs max", "magnitude", "greatest magnitude"),
  plain("abs_mean", "abs mean", "magnitude", "mean magnitude"),
  {
    name: "norm",
    label: "norm",
    kind: "magnitude",
    about: "Euclidean norm",
    of: (row) => (row.rms ?? Number.NaN) * Math.sqrt(row.count ?? Number.NaN),
  },
  plain("std", "std", "magnitude", "standard deviation"),
  plain("mean", "mean", "signed", "mean"),
  plain("min", "min", "signed", "least value"),
  plain("max", "max", "signed", "greatest value"),
  plain(
    "batch_std",
    "batch std",
    "magnitude",
    "standard deviation over the batch, mean of positions",
  ),
  share("zero_share", "zeros", ["zeros", "count"], "share of elements that are 0"),
  share("nan_share", "NaN", ["nans", "count"], "share of elements that are NaN"),
  share("inf_share", "Inf", ["infs", "count"], "share of elements that are infinite"),
  share(
    "dead_share",
    "dead",
    ["dead_units", "units"],
    "share of units that are 0 for the whole batch",
  ),
  share(
    "constant_share",
    "constant",
    ["constant_units", "units"],
    "share of units that are the same for every sample",
  ),
  plain(
    UPDATE_RATIO,
    "update ratio",
    "magnitude",
    "norm of a parameter's update over the norm of the parameter",
  ),
];

/** A statistic that a run was asked for besides those that every run has. */
export interface OwnStatistic {
  name: string;
  kind: string;
  about: string;
}

/** The statistics of every run, and a run's own. */
export function withOwn(own: readonly OwnStatistic[]): readonly Statistic[] {
  const kindOf = (kind: string): StatisticKind =>
    kind === "magnitude" || kind === "share" ? kind : "signed";
  return [
    ...STATISTICS,
    ...own.map(({ name, kind, about }) => plain(name, name, kindOf(kind), about)),
  ];
}

export function statisticOf(name: string, of: readonly Statistic[] = STATISTICS): Statistic {
  return of.find((statistic) => statistic.name === name) ?? STATISTICS[0]!;
}

/** What stands where quantities would, in a run that has just begun. */
export const NO_STEP_YET = "No step recorded yet.";

const QUANTITY_LABELS: Record<string, string> = {
  value: "value",
  grad: "grad",
  grad_applied: "grad applied",
  update: "update",
};

export function quantityLabel(name: string): string {
  return QUANTITY_LABELS[name] ?? name;
}

export const TENSOR_CLASSES = [
  "input",
  "output",
  "parameter",
  "buffer",
  "optimizer",
  "tensor",
] as const;
