/** The findings of a run that the user does not want to be told again, kept in this browser. */
export class Muted {
  ids = $state.raw<ReadonlySet<string>>(new Set());
  private readonly key: string;

  constructor(run: string) {
    this.key = `backlight-muted:${run}`;
    this.ids = new Set(this.read());
  }

  toggle(id: string): void {
    const ids = new Set(this.ids);
    if (!ids.delete(id)) ids.add(id);
    this.ids = ids;
    try {
      localStorage.setItem(this.key, JSON.stringify([...ids]));
    } catch {
      // A notebook or a file may have no storage: it is muted until the page is closed.
    }
  }

  private read(): string[] {
    try {
      const found: unknown = JSON.parse(localStorage.getItem(this.key) ?? "[]");
      return Array.isArray(found) ? found.filter((id) => typeof id === "string") : [];
    } catch {
      return [];
    }
  }
}
