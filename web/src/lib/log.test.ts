import { describe, expect, it } from "vitest";
import { eventColour, logRows } from "./log";

const note = (step: number, written_at: number) => ({ step, text: `note ${step}`, written_at });
const event = (step: number, happened_at: number) => ({
  step,
  kind: "spike",
  site: 3,
  text: `spike ${step}`,
  happened_at,
});

describe("the log", () => {
  it("has notes and events in the order in which they happened", () => {
    const rows = logRows([note(5, 50), note(1, 10)], [event(5, 40), event(2, 20)]);
    expect(rows.map(({ text }) => text)).toEqual(["note 1", "spike 2", "spike 5", "note 5"]);
    expect(rows[0]).toEqual({ step: 1, kind: "note", text: "note 1", site: -1, at: 10 });
  });

  it("has a colour for each kind", () => {
    expect(new Set(["note", "nonfinite", "spike", "of my own"].map(eventColour)).size).toBe(4);
  });
});
