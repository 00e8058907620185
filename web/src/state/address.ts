/** Where the page keeps what it shows: `#/project/run/view?…`. */
export interface Address {
  read(): string;
  write(place: string, isReplacing: boolean): void;
  /** Calls back when the place changed otherwise, such as by going back. */
  onMove(callback: () => void): void;
}

/** The address of the browser's window, with its history. */
export class WindowAddress implements Address {
  read(): string {
    return location.hash;
  }

  write(place: string, isReplacing: boolean): void {
    if (isReplacing) history.replaceState(null, "", place);
    else history.pushState(null, "", place);
  }

  onMove(callback: () => void): void {
    addEventListener("popstate", callback);
  }
}

/** An address of the page's own, where the window's belongs to another page, such as a notebook.
 *
 * Links are followed here, and Alt with an arrow goes back and forth. */
export class OwnAddress implements Address {
  private places: string[];
  private at = 0;
  private callback = () => {};

  constructor(
    first: string,
    private readonly onWrite: (place: string) => void = () => {},
  ) {
    this.places = [first];
    document.addEventListener("click", (event) => this.follow(event));
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  read(): string {
    return this.places[this.at]!;
  }

  write(place: string, isReplacing: boolean): void {
    if (!isReplacing) this.at += 1;
    this.places = [...this.places.slice(0, this.at), place];
    this.onWrite(place);
  }

  onMove(callback: () => void): void {
    this.callback = callback;
  }

  /** Goes to a place that somebody else chose. */
  go(place: string): void {
    if (place === this.read()) return;
    this.write(place, false);
    this.callback();
  }

  private follow(event: MouseEvent): void {
    const link = (event.target as Element | null)?.closest?.("a[href^='#']");
    if (!link || event.defaultPrevented) return;
    event.preventDefault();
    this.go(link.getAttribute("href")!);
  }

  private onKey(event: KeyboardEvent): void {
    const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!event.altKey || offset === undefined) return;
    event.preventDefault();
    const at = this.at + offset;
    if (this.places[at] === undefined) return;
    this.at = at;
    this.onWrite(this.read());
    this.callback();
  }
}
