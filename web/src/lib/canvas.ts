/** Sets a canvas to a size in CSS pixels, at the screen's own resolution; returns its context. */
export function fitCanvas(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
): CanvasRenderingContext2D {
  const ratio = devicePixelRatio || 1;
  const deviceWidth = Math.max(1, Math.round(width * ratio));
  const deviceHeight = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== deviceWidth) canvas.width = deviceWidth;
  if (canvas.height !== deviceHeight) canvas.height = deviceHeight;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** What the page's colours and fonts are in each theme: all of them stand at its root. */
const known = new Map<string, Map<string, string>>();

/** The page's colours and fonts, for what is drawn and not styled.
 *
 * Each is asked for once: the browser would bring the styles of all that has just been made up to date
 * before it answers, for one plot after another. */
export function styleOf(element: Element): (name: string) => string {
  const theme = document.documentElement.dataset.theme ?? "";
  const found = known.get(theme) ?? new Map<string, string>();
  if (theme) known.set(theme, found);
  return (name) => {
    const value = found.get(name) || getComputedStyle(element).getPropertyValue(name).trim();
    found.set(name, value);
    return value;
  };
}
