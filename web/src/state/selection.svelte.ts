import { formatSelection, NOTHING, parseSelection, type Selection } from "../lib/selection";

/** Movements that follow each other within this time are one entry of the history. */
const SCRUB_MS = 1000;

/** The one selection that every view reads and writes, kept in the page's address. */
class SelectionState {
  current = $state.raw<Selection>(NOTHING);
  private scrubbedAt = Number.NEGATIVE_INFINITY;

  start(): void {
    this.current = parseSelection(location.hash);
    addEventListener("popstate", () => {
      this.scrubbedAt = Number.NEGATIVE_INFINITY;
      this.current = parseSelection(location.hash);
    });
  }

  /** Changes a part of the selection: one entry of the browser's history, so that back undoes it. */
  change(part: Partial<Selection>): void {
    this.scrubbedAt = Number.NEGATIVE_INFINITY;
    this.set(part, false);
  }

  /** Changes something that is moved through rather than chosen: a whole movement is one entry. */
  scrub(part: Partial<Selection>): void {
    const isSameMovement = performance.now() - this.scrubbedAt < SCRUB_MS;
    this.scrubbedAt = performance.now();
    this.set(part, isSameMovement);
  }

  private set(part: Partial<Selection>, isReplacing: boolean): void {
    const next = { ...this.current, ...part };
    const address = formatSelection(next);
    if (address === formatSelection(this.current)) return;
    this.current = next;
    if (isReplacing) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
  }

  openRun(run: string | null): void {
    this.change({ ...NOTHING, run, view: run === null ? NOTHING.view : this.current.view });
  }

  /** One level out: from a tensor to the heatmap, to the overview, to the list of runs. */
  out(): void {
    const { view, site } = this.current;
    if (view === "tensor") this.change({ view: "heatmap" });
    else if (view === "heatmap") this.change({ view: "overview" });
    else if (site !== null) this.change({ site: null });
    else this.openRun(null);
  }
}

export const selection = new SelectionState();
