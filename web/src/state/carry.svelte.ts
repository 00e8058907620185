import { placePin } from "../lib/pins";
import { selection } from "./selection.svelte";

const SLOP = 4;
/** How long something is held over the rail's entry before that view opens. */
const SPRING_MS = 350;

/** A site that is dragged with the pointer: from a list, a column or the graph, into the pins. */
class CarryState {
  site = $state<string | null>(null);
  x = $state(0);
  y = $state(0);
  /** Where among the pins it would be put. */
  slot = $state<number | null>(null);

  private waiting: { site: string; x: number; y: number } | null = null;
  private spring = 0;
  private hasMoved = false;

  /** To be called when the pointer goes down on something that can be dragged. */
  begin(site: string, event: PointerEvent): void {
    if (event.button !== 0) return;
    this.waiting = { site, x: event.clientX, y: event.clientY };
    this.hasMoved = false;
  }

  /** Whether the click that ends a movement was the end of a drag, and no click. */
  get wasDrag(): boolean {
    return this.hasMoved;
  }

  move(event: PointerEvent): void {
    if (!this.waiting) return;
    const far = Math.hypot(event.clientX - this.waiting.x, event.clientY - this.waiting.y) >= SLOP;
    if (!far && this.site === null) return;
    this.hasMoved = true;
    this.site = this.waiting.site;
    this.x = event.clientX;
    this.y = event.clientY;
    const under = document.elementFromPoint(this.x, this.y);
    this.slot = slotUnder(under, this.x);
    this.openUnder(under?.closest("[data-view=pins]") ?? null);
  }

  end(): void {
    if (this.site !== null && this.slot !== null) {
      selection.change({ pins: placePin(selection.current.pins, this.site, this.slot) });
    }
    this.cancel();
  }

  cancel(): void {
    clearTimeout(this.spring);
    this.spring = 0;
    this.waiting = null;
    this.site = null;
    this.slot = null;
  }

  private openUnder(entry: Element | null): void {
    if (!entry || selection.current.view === "pins") {
      clearTimeout(this.spring);
      this.spring = 0;
    } else if (this.spring === 0) {
      this.spring = window.setTimeout(() => selection.change({ view: "pins" }), SPRING_MS);
    }
  }
}

/** Before the column that is pointed at, or behind it where its right half is; behind all elsewhere. */
function slotUnder(under: Element | null, x: number): number | null {
  const column = under?.closest<HTMLElement>("[data-pin-slot]");
  if (column) {
    const { left, width } = column.getBoundingClientRect();
    return Number(column.dataset.pinSlot) + Number(x > left + width / 2);
  }
  const isTarget = under?.closest("[data-view=pins], [data-pins]") !== null && under !== null;
  return isTarget ? selection.current.pins.length : null;
}

export const carry = new CarryState();
