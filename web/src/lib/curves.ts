/** How the curves of scalars are drawn. */
export interface CurveOptions {
  /** The weight of what came before, from 0 to 0.99. */
  smoothing: number;
  isLog: boolean;
  /** Outliers get marks instead of room. */
  isRobust: boolean;
  /** Over the time since the run began, and not over steps. */
  isTimed: boolean;
  /** The scalars of a group in one plot. */
  isOverlaid: boolean;
  /** A line for each kind of step. */
  isByKind: boolean;
}

export const PLAIN_CURVES: CurveOptions = {
  smoothing: 0,
  isLog: false,
  isRobust: true,
  isTimed: false,
  isOverlaid: false,
  isByKind: true,
};

const MOST_SMOOTHING = 0.99;

/** `smooth-0.9,log,time`; what is plain is left out. */
export function formatCurves(options: CurveOptions): string {
  const words = [
    options.smoothing > 0 && `smooth-${options.smoothing}`,
    options.isLog && "log",
    !options.isRobust && "full",
    options.isTimed && "time",
    options.isOverlaid && "overlay",
    !options.isByKind && "kinds-as-one",
  ];
  return words.filter(Boolean).join(",");
}

export function parseCurves(text: string): CurveOptions {
  const words = new Set(text.split(","));
  const smoothing = Number(/smooth-([0-9.]+)/.exec(text)?.[1] ?? 0);
  return {
    smoothing: Number.isFinite(smoothing) ? Math.min(MOST_SMOOTHING, smoothing) : 0,
    isLog: words.has("log"),
    isRobust: !words.has("full"),
    isTimed: words.has("time"),
    isOverlaid: words.has("overlay"),
    isByKind: !words.has("kinds-as-one"),
  };
}

export interface Group {
  /** Empty for those that stand alone. */
  prefix: string;
  names: string[];
}

/** Scalars whose names begin alike, up to the first `/` or `_`, belong together. The loss comes first,
 * with all that stand alone. */
export function groupScalars(names: readonly string[]): Group[] {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const prefix = /^(.+?)[/_]/.exec(name)?.[1] ?? "";
    groups.set(prefix, [...(groups.get(prefix) ?? []), name]);
  }
  const alone: string[] = groups.get("") ?? [];
  const several: Group[] = [];
  for (const [prefix, members] of groups) {
    if (prefix === "") continue;
    // A name that is itself the prefix of others belongs to them; one without others stands alone.
    const whole = alone.indexOf(prefix);
    if (members.length === 1 && whole < 0) alone.push(...members);
    else
      several.push({
        prefix,
        names: [...alone.splice(whole, whole < 0 ? 0 : 1), ...members].sort(),
      });
  }
  const isLoss = (name: string) => Number(name === "loss");
  alone.sort((a, b) => isLoss(b) - isLoss(a) || (a < b ? -1 : 1));
  several.sort((a, b) => (a.prefix < b.prefix ? -1 : 1));
  return alone.length > 0 ? [{ prefix: "", names: alone }, ...several] : several;
}
