import { styleOf } from "./canvas";
import { SvgPen } from "./svgPen";

/** What a plot needs to be saved: its numbers, and how it is drawn. */
export interface Savable {
  /** Of the file, without its ending. */
  name: string;
  csv: () => string;
  picture: () => Picture;
}

export interface Picture {
  width: number;
  height: number;
  draw: (pen: CanvasRenderingContext2D, style: (name: string) => string) => void;
}

const PIXELS_PER_POINT = 2;
const MARGIN = 8;
const TITLE = 20;

export function saveCsv({ name, csv }: Pick<Savable, "name" | "csv">): void {
  download(name, "csv", new Blob([csv()], { type: "text/csv" }));
}

export function saveSvg(savable: Savable): void {
  const { width, height, draw } = framed(savable);
  const context = document.createElement("canvas").getContext("2d")!;
  const pen = new SvgPen(width, height, (text, font) => {
    context.font = font;
    return context.measureText(text).width;
  });
  draw(pen as unknown as CanvasRenderingContext2D, styleOf(document.documentElement));
  download(savable.name, "svg", new Blob([pen.toString()], { type: "image/svg+xml" }));
}

export async function savePng(savable: Savable): Promise<void> {
  const { width, height, draw } = framed(savable);
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * PIXELS_PER_POINT);
  canvas.height = Math.round(height * PIXELS_PER_POINT);
  const context = canvas.getContext("2d")!;
  context.scale(PIXELS_PER_POINT, PIXELS_PER_POINT);
  draw(context, styleOf(document.documentElement));
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve));
  if (blob) download(savable.name, "png", blob);
}

/** The picture on the page's own ground, with its name above it. */
function framed({ name, picture }: Savable): Picture {
  const { width, height, draw } = picture();
  return {
    width: width + 2 * MARGIN,
    height: height + 2 * MARGIN + TITLE,
    draw: (pen, style) => {
      pen.fillStyle = style("--page");
      pen.fillRect(0, 0, width + 2 * MARGIN, height + 2 * MARGIN + TITLE);
      pen.fillStyle = style("--text");
      pen.font = `600 12px ${style("--font")}`;
      pen.textAlign = "left";
      pen.textBaseline = "alphabetic";
      pen.fillText(name, MARGIN, MARGIN + 12);
      const moved = new Proxy(pen, shift(MARGIN, MARGIN + TITLE));
      draw(moved, style);
    },
  };
}

const MOVED = new Set(
  "fillRect fillText drawImage moveTo lineTo rect roundRect arc arcTo bezierCurveTo quadraticCurveTo".split(
    " ",
  ),
);
/** The methods of which all arguments are places. */
const ALL_PLACES = new Set(["bezierCurveTo", "quadraticCurveTo"]);
const TWO_PLACES = 4;

/** A pen whose origin is elsewhere; SVG and canvas then need no transformation of their own. */
function shift(dx: number, dy: number): ProxyHandler<CanvasRenderingContext2D> {
  return {
    get(pen, key) {
      const member = Reflect.get(pen, key) as unknown;
      if (typeof member !== "function") return member;
      if (!MOVED.has(String(key))) return member.bind(pen);
      const first = key === "fillText" || key === "drawImage" ? 1 : 0;
      const last = ALL_PLACES.has(String(key))
        ? Number.POSITIVE_INFINITY
        : first + (key === "arcTo" ? TWO_PLACES : 2);
      return (...given: unknown[]) =>
        member.apply(
          pen,
          given.map((value, i) =>
            i < first || i >= last ? value : (value as number) + ((i - first) % 2 === 0 ? dx : dy),
          ),
        );
    },
    set(pen, key, value) {
      return Reflect.set(pen, key, value);
    },
  };
}

function download(name: string, ending: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${name.replace(/[^\p{L}\p{N}.,_ -]+/gu, "_").slice(0, 120)}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
