import { fullRange } from "./ranges";
import type { Series } from "./series";

/** From steps to pixels. */
export interface StepScale {
  first: number;
  last: number;
  x: (step: number) => number;
  stepAt: (x: number) => number;
}

export function stepScale(first: number, last: number, left: number, right: number): StepScale {
  const span = Math.max(1, last - first);
  return {
    first,
    last,
    x: (step) => left + ((step - first) / span) * (right - left),
    stepAt: (x) => first + ((x - left) / Math.max(1, right - left)) * span,
  };
}

/** A loss that falls over more than this factor is drawn on a log axis. */
const LOG_FROM = 50;

/** Where a curve's values are between 0 (bottom) and 1 (top). */
export function curveScale({ value }: Pick<Series, "value">) {
  const range = fullRange(value) ?? { low: 0, high: 1 };
  const isLog = range.low > 0 && range.high / range.low > LOG_FROM;
  const bend = isLog ? Math.log : (v: number) => v;
  const low = bend(range.low);
  const span = bend(range.high) - low || 1;
  return { ...range, isLog, place: (v: number) => (bend(v) - low) / span };
}
