import { legible } from "./truncate";

/** What happened in a run, in one list: notes that the user wrote and events that were seen. */
export interface LogRow {
  step: number;
  kind: string;
  text: string;
  /** The number of the site that it is about, or -1. */
  site: number;
  /** In seconds since 1970. */
  at: number;
}

interface NoteLike {
  step: number;
  text: string;
  written_at: number;
}

interface EventLike {
  step: number;
  kind: string;
  site: number;
  text: string;
  happened_at: number;
}

export const NOTE = "note";

/** In the order of steps, and at one step in the order of time. */
export function logRows(notes: readonly NoteLike[], events: readonly EventLike[]): LogRow[] {
  const rows = [
    ...notes.map(({ step, text, written_at }) => ({
      step,
      kind: NOTE,
      text: legible(text),
      site: -1,
      at: written_at,
    })),
    ...events.map(({ happened_at, text, ...event }) => ({
      ...event,
      text: legible(text),
      at: happened_at,
    })),
  ];
  return rows.sort((a, b) => a.step - b.step || a.at - b.at);
}

/** The colour of a kind of event, the same in the log, on the timeline and above curves. */
export function eventColour(kind: string): string {
  if (kind === NOTE) return "--role-parameter";
  if (kind === "nonfinite") return "--nan";
  return kind === "spike" ? "--loss" : "--accent";
}
