import { lineColour } from "./lines";

/** The pins with a site at a place: moved there if it was pinned, added if not. */
export function placePin(pins: readonly string[], site: string, place: number): string[] {
  const from = pins.indexOf(site);
  const others = pins.filter((name) => name !== site);
  const at = from >= 0 && from < place ? place - 1 : place;
  return [...others.slice(0, at), site, ...others.slice(at)];
}

/** The colour of a pinned site, the same in every view; null for one that is not pinned. */
export function pinColour(pins: readonly string[], site: string): string | null {
  const at = pins.indexOf(site);
  return at < 0 ? null : lineColour(at);
}
