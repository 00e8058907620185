import type { CurveOptions } from "./curves";
import { LINE_COLOURS, type Line, lineColour, smooth, type XAxis } from "./lines";
import { nearest } from "./search";
import { longest, type Series } from "./series";
import { niceTicks } from "./ticks";

/** Makes lines of scalars: over steps or time, one for each kind of step, smoothed. */
export class CurveMaker {
  /** The series that tells at which time which step was, and when the first one of all began. */
  private readonly clock: Series;
  private readonly began: number;

  constructor(
    scalars: ReadonlyMap<string, Series>,
    readonly kinds: readonly string[],
    private readonly options: CurveOptions,
    /** Only steps of this kind; null for all. */
    private readonly kind: string | null,
  ) {
    this.clock = longest(scalars);
    this.began = [...scalars.values()].reduce((first, { at }) => Math.min(first, at[0]!), Infinity);
  }

  /** One line, or one for each kind of step at which it was logged. */
  lines(name: string, series: Series, colour: string): Line[] {
    // One kind only: nothing has to be looked up, and nothing to be copied.
    if (this.kind === null && this.kinds.length <= 1 && !this.options.isTimed)
      return [this.smoothed(name, series.step, series.value, colour)];
    const kinds = series.kind;
    const wanted = (kind: string) => this.kind === null || kind === this.kind;
    const present = [...new Set(kinds)].filter(wanted);
    // More kinds than colours: lines that could not be told apart.
    const canSplit = present.length > 1 && present.length <= LINE_COLOURS.length;
    const isSplit = this.options.isByKind && canSplit;
    if (!isSplit) return [this.line(name, series, colour, (i) => wanted(kinds[i]!))];
    return present
      .sort()
      .map((kind) =>
        this.line(kind, series, lineColour(this.kinds.indexOf(kind)), (i) => kinds[i] === kind),
      );
  }

  /** Where a step is on the axis. */
  place(step: number): number {
    if (!this.options.isTimed) return step;
    const at = nearest(this.clock.step, step);
    return at < 0 ? step : this.clock.at[at]! - this.began;
  }

  /** Where a moment is on the axis: one at a step, in seconds since 1970. */
  moment(step: number, at: number): number {
    return this.options.isTimed ? at - this.began : step;
  }

  /** The step at a place of the axis. */
  stepAt(place: number): number {
    if (!this.options.isTimed) return place;
    return this.clock.step[nearest(this.clock.at, place + this.began)] ?? 0;
  }

  private line(
    name: string,
    { step, value, at }: Series,
    colour: string,
    isWanted: (index: number) => boolean,
  ): Line {
    const kept = step.map((_, i) => i).filter(isWanted);
    const y = kept.map((i) => value[i]!);
    const x = kept.map((i) => this.moment(step[i]!, at[i]!));
    return this.smoothed(name, x, y, colour);
  }

  private smoothed(name: string, x: ArrayLike<number>, y: ArrayLike<number>, colour: string): Line {
    const { smoothing } = this.options;
    return smoothing > 0
      ? { name, colour, x, y: smooth(y, smoothing), raw: y }
      : { name, colour, x, y };
  }
}

const UNITS: [secs: number, unit: string][] = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** Time since the run began, in the unit in which it has few digits. */
export function timeAxis(high: number): XAxis {
  const [secs, unit] = UNITS.find(([each]) => high >= 2 * each) ?? [1, "s"];
  return {
    unit: `time, ${unit}`,
    low: 0,
    high: Math.max(high, 1e-3),
    ticks: (low, top, count) => niceTicks(low / secs, top / secs, count).map((tick) => tick * secs),
    format: (value) => String(Number((value / secs).toPrecision(6))),
  };
}
