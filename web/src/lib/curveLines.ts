import type { CurveOptions } from "./curves";
import { LINE_COLOURS, type Line, lineColour, smooth, type XAxis } from "./lines";
import { nearest } from "./search";
import type { Series } from "./series";
import { niceTicks } from "./ticks";

interface Steps {
  step: readonly number[];
  kind: readonly string[];
  started_at: readonly number[];
}

/** Makes lines of scalars: over steps or time, one for each kind of step, smoothed. */
export class CurveMaker {
  private readonly began: number;
  readonly kinds: string[];

  constructor(
    private readonly steps: Steps,
    private readonly options: CurveOptions,
    /** Only steps of this kind; null for all. */
    private readonly kind: string | null,
  ) {
    this.began = steps.started_at[0] ?? 0;
    this.kinds = [...new Set(steps.kind)].sort();
  }

  /** One line, or one for each kind of step at which it was logged. */
  lines(name: string, series: Series, colour: string): Line[] {
    // One kind only: nothing has to be looked up, and nothing to be copied.
    if (this.kind === null && this.kinds.length <= 1 && !this.options.isTimed)
      return [this.smoothed(name, series.step, series.value, colour)];
    const kinds = series.step.map((step) => this.kindAt(step));
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
    const at = nearest(this.steps.step, step);
    return at < 0 ? step : this.steps.started_at[at]! - this.began;
  }

  /** The step at a place of the axis. */
  stepAt(place: number): number {
    if (!this.options.isTimed) return place;
    return this.steps.step[nearest(this.steps.started_at, place + this.began)] ?? 0;
  }

  private kindAt(step: number): string {
    return this.steps.kind[nearest(this.steps.step, step)] ?? "";
  }

  private line(
    name: string,
    { step, value }: Series,
    colour: string,
    isWanted: (index: number) => boolean,
  ): Line {
    const kept = step.map((_, i) => i).filter(isWanted);
    const y = kept.map((i) => value[i]!);
    const x = kept.map((i) => this.place(step[i]!));
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
