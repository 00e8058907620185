import { formatSelection, NOTHING, parseSelection, type Selection } from "../lib/selection";
import { type Address, WindowAddress } from "./address";

/** Movements that follow each other within this time are one entry of the history. */
const SCRUB_MS = 1000;

/** The one selection that every view reads and writes, kept in the page's address. */
class SelectionState {
  current = $state.raw<Selection>(NOTHING);
  private scrubbedAt = Number.NEGATIVE_INFINITY;

  private keeper: Address = new WindowAddress();

  start(address: Address = this.keeper): void {
    this.keeper = address;
    this.current = parseSelection(address.read());
    address.onMove(() => {
      this.scrubbedAt = Number.NEGATIVE_INFINITY;
      this.current = parseSelection(address.read());
    });
  }

  /** Changes a part of the selection: one entry of the browser's history, so that back undoes it. */
  change(part: Partial<Selection>): void {
    this.scrubbedAt = Number.NEGATIVE_INFINITY;
    this.set(part, false);
  }

  /** Changes something that is moved through rather than chosen: a whole movement is one entry, also where
   * something had to be loaded since it was `wantedAt`. */
  scrub(part: Partial<Selection>, wantedAt = performance.now()): void {
    const isSameMovement = wantedAt - this.scrubbedAt < SCRUB_MS;
    this.scrubbedAt = performance.now();
    this.set(part, isSameMovement);
  }

  /** Changes something that belongs to the last change: back undoes both. */
  amend(part: Partial<Selection>): void {
    this.set(part, true);
  }

  /** The address that shows this with a part of it changed. */
  address(part: Partial<Selection>): string {
    return formatSelection({ ...this.current, ...part });
  }

  private set(part: Partial<Selection>, isReplacing: boolean): void {
    const next = { ...this.current, ...part };
    const address = formatSelection(next);
    if (address === formatSelection(this.current)) return;
    this.current = next;
    this.keeper.write(address, isReplacing);
  }

  /** Pins a site for comparison, or unpins it. */
  pin(site: string): void {
    const { pins } = this.current;
    this.change({
      pins: pins.includes(site) ? pins.filter((name) => name !== site) : [...pins, site],
    });
  }

  openRun(run: string | null): void {
    this.change({ ...NOTHING, run, view: run === null ? NOTHING.view : this.current.view });
  }

  /** One level out: from a tensor to the heatmap, from a view to the overview, to the list of runs. */
  out(): void {
    const { view, site } = this.current;
    if (view === "graph") this.change(site === null ? { view: "overview" } : { site: null });
    else if (view === "tensor") this.change({ view: "heatmap" });
    else if (view !== "overview") this.change({ view: "overview" });
    else if (site !== null) this.change({ site: null });
    else this.openRun(null);
  }
}

export const selection = new SelectionState();
