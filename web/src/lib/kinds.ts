import { rampColour, toCss } from "./colour";
import { LINE_COLOURS } from "./lines";

/** Leaves out the ends of the ramp, which are hard to see on a dark or on a light page. */
const RAMP: Record<"light" | "dark", readonly [from: number, to: number]> = {
  light: [0, 0.85],
  dark: [0.2, 1],
};

/** A colour for each kind of step: that of its lines, or, where kinds are more than those, one on a ramp in
 * the order of their names. */
export function kindColours(kinds: readonly string[], dark: boolean): Map<string, string> {
  const [from, to] = RAMP[dark ? "dark" : "light"];
  const place = (i: number) => from + ((to - from) * i) / Math.max(1, kinds.length - 1);
  return new Map(
    kinds.map((kind, i) => [
      kind,
      kinds.length <= LINE_COLOURS.length
        ? `var(${LINE_COLOURS[i]})`
        : toCss(rampColour("viridis", dark, place(i))),
    ]),
  );
}

/** Closer than this, in pixels, marks would be a bar of one colour and not marks. */
const CLOSEST = 2;

/** The recorded steps that have room for a mark: where they stand, by kind. */
export function marksByKind(
  { step, kind }: { step: readonly number[]; kind: readonly string[] },
  place: (step: number) => number,
): Map<string, number[]> {
  const marks = new Map<string, number[]>();
  let before = Number.NEGATIVE_INFINITY;
  for (const [i, each] of step.entries()) {
    const x = Math.round(place(each));
    if (x - before < CLOSEST) continue;
    before = x;
    const own = marks.get(kind[i]!);
    if (own) own.push(x);
    else marks.set(kind[i]!, [x]);
  }
  return marks;
}
