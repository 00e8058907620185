import { type Box, newBox } from "./model";

const LEAST_REPEATS = 3;
const LONGEST_PERIOD = 8;
/** More boxes than this in one are put into groups: what is opened must fit a screen. */
export const MOST_CHILDREN = 20;
const MOST_GROUPS = 16;

/** Folds repeated siblings into one box, and puts many siblings into groups, in every box. Those whose
 * tensors are marked otherwise are not equal. */
export function arrangeChildren(boxes: Box[], marks: readonly string[] = []): void {
  const shapes = structureHashes(boxes, marks);
  for (const box of boxes.slice()) {
    if (box.children.length < LEAST_REPEATS) continue;
    foldRepeats(boxes, box, shapes);
    groupMany(boxes, box);
  }
}

/** A number for each box that is the same for boxes of the same classes, settings and nesting. */
function structureHashes(boxes: readonly Box[], marks: readonly string[]): number[] {
  const numbers = new Map<string, number>();
  const found: number[] = [];
  const visit = (index: number): number => {
    const box = boxes[index]!;
    const inside = box.children.map((child) => `${boxes[child]!.label}=${visit(child)}`);
    const own = box.kind === "module" ? "" : box.label;
    const marked = marks.length === 0 ? "" : box.vertices.map((vertex) => marks[vertex]).join();
    const parts = [box.kind, box.about, box.extra, own, box.vertices.length, marked, ...inside];
    const text = parts.join("\n");
    const number = numbers.get(text) ?? numbers.size;
    numbers.set(text, number);
    found[index] = number;
    return number;
  };
  visit(0);
  return found;
}

function foldRepeats(boxes: Box[], box: Box, shapes: readonly number[]): void {
  const { children } = box;
  const kept: number[] = [];
  for (let at = 0; at < children.length; ) {
    const { period, repeats } = repeatAt(children, at, shapes);
    if (repeats < LEAST_REPEATS) {
      kept.push(children[at]!);
      at++;
      continue;
    }
    kept.push(fold(boxes, children.slice(at, at + period * repeats), period));
    at += period * repeats;
  }
  box.children = kept;
}

/** The repetition that starts at a place and covers most of what follows. */
export function repeatAt(children: readonly number[], at: number, shapes: readonly number[]) {
  let best = { period: 1, repeats: 1 };
  for (let period = 1; period <= LONGEST_PERIOD; period++) {
    let end = at + period;
    while (end < children.length && shapes[children[end]!] === shapes[children[end - period]!])
      end++;
    const repeats = Math.floor((end - at) / period);
    if (repeats < LEAST_REPEATS) continue;
    if (repeats * period > best.repeats * best.period || best.repeats < LEAST_REPEATS) {
      best = { period, repeats };
    }
  }
  return best;
}

function fold(boxes: Box[], members: number[], period: number): number {
  const parts = period === 1 ? members : chunks(members, period).map((part) => group(boxes, part));
  const first = boxes[parts[0]!]!;
  const last = boxes[parts.at(-1)!]!;
  return newBox(boxes, {
    id: `${first.id}…${last.id}`,
    kind: "fold",
    label: rangeLabel(first.label, last.label),
    about: first.about,
    extra: first.extra,
    children: grouped(boxes, parts),
    count: parts.length,
  }).index;
}

function groupMany(boxes: Box[], box: Box): void {
  box.children = grouped(boxes, box.children);
}

function grouped(boxes: Box[], members: number[]): number[] {
  if (members.length <= MOST_CHILDREN) return members;
  const groups = Math.min(MOST_GROUPS, Math.ceil(Math.sqrt(members.length)));
  const size = Math.ceil(members.length / groups);
  return chunks(members, size).map((part) => (part.length === 1 ? part[0]! : group(boxes, part)));
}

function group(boxes: Box[], members: number[]): number {
  const first = boxes[members[0]!]!;
  const last = boxes[members.at(-1)!]!;
  const kinds = new Set(members.map((index) => boxes[index]!.kind));
  const what = kinds.size === 1 && kinds.has("tensor") ? "tensors" : "modules";
  const names = [...new Set(members.map((index) => boxes[index]!.about))];
  return newBox(boxes, {
    id: `${first.id}‥${last.id}`,
    kind: "group",
    label: rangeLabel(first.label, last.label),
    about:
      names.length <= 3 && members.length <= LONGEST_PERIOD
        ? names.join(", ")
        : `${members.length} ${what}`,
    children: grouped(boxes, members),
  }).index;
}

/** `blocks.0 – 5` of `blocks.0` and `blocks.5`. */
export function rangeLabel(first: string, last: string): string {
  const head = first.split(" – ", 1)[0]!;
  const tail = last.split(" – ").at(-1)!;
  const dot = head.lastIndexOf(".") + 1;
  const isShared = dot > 0 && tail.startsWith(head.slice(0, dot));
  return `${head} – ${isShared ? tail.slice(dot) : tail}`;
}

function chunks<T>(list: readonly T[], size: number): T[][] {
  const parts: T[][] = [];
  for (let i = 0; i < list.length; i += size) parts.push(list.slice(i, i + size));
  return parts;
}
