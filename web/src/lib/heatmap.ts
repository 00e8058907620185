import { MARKS, pack, parseHex, ramp } from "./colour";
import { median } from "./ranges";
import type { ColourScale } from "./scale";

/** One value for each site and column of steps, site after site. */
export interface HeatmapMatrix {
  /** The steps, first and last, of each column. */
  columns: [first: number, last: number][];
  /** The row of a site's number, or -1. */
  rowOfSite: Int32Array;
  /** NaN where nothing was recorded. */
  values: Float64Array;
  flags: Uint8Array;
  nans: Float64Array;
  infs: Float64Array;
}

export const PRESENT = 1;
export const HAS_NAN = 2;
export const HAS_INF = 4;

export interface HeatmapTable {
  site: ArrayLike<number>;
  column: ArrayLike<number>;
  value: ArrayLike<number | null>;
  nans: ArrayLike<number>;
  infs: ArrayLike<number>;
}

export function heatmapMatrix(
  table: HeatmapTable,
  columns: [number, number][],
  sites: number,
): HeatmapMatrix {
  const { rowOfSite, rows } = numberRows(table.site, sites);
  const width = columns.length;
  const values = new Float64Array(rows * width).fill(Number.NaN);
  const flags = new Uint8Array(rows * width);
  const nans = new Float64Array(rows * width);
  const infs = new Float64Array(rows * width);
  for (let i = 0; i < table.site.length; i++) {
    const cell = rowOfSite[table.site[i]!]! * width + table.column[i]!;
    const value = table.value[i] ?? Number.NaN;
    nans[cell] = table.nans[i]!;
    infs[cell] = table.infs[i]!;
    const isOverflow = value === Number.POSITIVE_INFINITY || value === Number.NEGATIVE_INFINITY;
    values[cell] = isOverflow ? Number.NaN : value;
    flags[cell] =
      PRESENT | (nans[cell]! > 0 ? HAS_NAN : 0) | (infs[cell]! > 0 || isOverflow ? HAS_INF : 0);
  }
  return { columns, rowOfSite, values, flags, nans, infs };
}

function numberRows(site: ArrayLike<number>, sites: number) {
  let highest = sites - 1;
  for (let i = 0; i < site.length; i++) highest = Math.max(highest, site[i]!);
  const rowOfSite = new Int32Array(highest + 1).fill(-1);
  let rows = 0;
  for (let i = 0; i < site.length; i++) {
    if (rowOfSite[site[i]!] === -1) rowOfSite[site[i]!] = rows++;
  }
  return { rowOfSite, rows };
}

/** Each cell's colour as an index into the ramp: done once, so that scrolling only copies. */
export function rampIndices(matrix: HeatmapMatrix, scale: ColourScale): Uint8Array {
  const { values } = matrix;
  const width = matrix.columns.length;
  const indices = new Uint8Array(values.length);
  for (let start = 0; start < values.length; start += width) {
    const reference =
      scale.name === "relative" ? (median(values.subarray(start, start + width)) ?? 0) : 0;
    for (let cell = start; cell < start + width; cell++) {
      const place = scale.place(values[cell]!, reference) * 255;
      indices[cell] = Math.max(0, Math.min(255, place));
    }
  }
  return indices;
}

export interface Viewport {
  width: number;
  height: number;
  /** The first row shown, with a fraction, and the height of a row in pixels. */
  firstRow: number;
  rowHeight: number;
}

const MIN_MARK = 3;

/** Paints rows of the matrix (`rows`: its row for each line, -1 for none) into pixels. */
export function paintHeatmap(
  pixels: Uint32Array,
  viewport: Viewport,
  matrix: HeatmapMatrix,
  indices: Uint8Array,
  rows: Int32Array,
  scale: ColourScale,
  dark: boolean,
): void {
  const { width, height, firstRow, rowHeight } = viewport;
  const line = new Line(width, matrix, indices, scale, dark);
  const flags = new Uint8Array(width * height);
  let before = -1;
  for (let y = 0; y < height; y++) {
    const top = Math.floor(firstRow + y / rowHeight + 1e-9);
    if (rowHeight >= 1 && top === before) {
      pixels.copyWithin(y * width, (y - 1) * width, y * width);
      flags.copyWithin(y * width, (y - 1) * width, y * width);
      continue;
    }
    before = top;
    const bottom = Math.max(top + 1, Math.floor(firstRow + (y + 1) / rowHeight + 1e-9));
    line.read(rows, top, bottom);
    pixels.set(line.colours, y * width);
    flags.set(line.flags, y * width);
  }
  if (line.anyMarks) {
    const reachX = reach(width / matrix.columns.length);
    paintMarks(pixels, flags, width, height, reachX, reach(rowHeight), dark);
  }
}

/** How far a mark must grow on each side to be seen. */
function reach(size: number): number {
  return size >= MIN_MARK ? 0 : Math.ceil((MIN_MARK - size) / 2);
}

/** One line of pixels: the strongest of the cells under each. */
class Line {
  readonly colours: Uint32Array;
  readonly flags: Uint8Array;
  anyMarks = false;
  private readonly strongest: Int16Array;
  private readonly firstColumn: Int32Array;
  private readonly table: Uint32Array;
  private readonly middle: number;

  constructor(
    private readonly width: number,
    private readonly matrix: HeatmapMatrix,
    private readonly indices: Uint8Array,
    scale: ColourScale,
    dark: boolean,
  ) {
    this.colours = new Uint32Array(width);
    this.flags = new Uint8Array(width);
    this.strongest = new Int16Array(width);
    this.table = ramp(scale.ramp, dark);
    this.middle = scale.ramp === "diverging" ? 127.5 : 0;
    const columns = matrix.columns.length;
    this.firstColumn = Int32Array.from({ length: width + 1 }, (_, x) =>
      Math.floor((x * columns) / width + 1e-9),
    );
  }

  read(rows: Int32Array, top: number, bottom: number): void {
    this.strongest.fill(-1);
    this.flags.fill(0);
    for (let row = top; row < bottom && row < rows.length; row++) {
      if (rows[row]! >= 0) this.add(rows[row]! * this.matrix.columns.length);
    }
    for (let x = 0; x < this.width; x++) {
      const index = this.strongest[x]!;
      this.colours[x] = index < 0 ? 0 : this.table[index]!;
      // A line of pixels without any row is outside the heatmap and stays empty.
      if (top >= rows.length) this.flags[x] = 255;
      else if (index < 0 || this.flags[x]! > PRESENT) this.anyMarks = true;
    }
  }

  private add(start: number): void {
    const { values, flags } = this.matrix;
    for (let x = 0; x < this.width; x++) {
      const first = this.firstColumn[x]!;
      const last = Math.max(first + 1, this.firstColumn[x + 1]!);
      for (let column = first; column < last; column++) {
        const cell = start + column;
        this.flags[x]! |= flags[cell]!;
        if (Number.isNaN(values[cell]!)) continue;
        const index = this.indices[cell]!;
        const held = this.strongest[x]!;
        if (held < 0 || Math.abs(index - this.middle) > Math.abs(held - this.middle)) {
          this.strongest[x] = index;
        }
      }
    }
  }
}

function paintMarks(
  pixels: Uint32Array,
  flags: Uint8Array,
  width: number,
  height: number,
  reachX: number,
  reachY: number,
  dark: boolean,
): void {
  const marks = MARKS[dark ? "dark" : "light"];
  const nan = pack(parseHex(marks.nan));
  const inf = pack(parseHex(marks.inf));
  const missing = pack(parseHex(marks.missing));
  const paper = pack(parseHex(marks.paper));
  const grown = reachX || reachY ? grow(flags, width, height, reachX, reachY) : flags;
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) {
      const flag = grown[i]!;
      if (flag === 255) continue;
      const hasValue = pixels[i] !== 0;
      if (flag & HAS_NAN && (x + y) % 8 < 3) pixels[i] = nan;
      else if (flag & HAS_INF && (x - y + 8 * height) % 8 < 2) pixels[i] = inf;
      else if (!hasValue) pixels[i] = flag === 0 && (x + y) % 5 === 0 ? missing : paper;
    }
  }
}

/** Spreads NaN and Inf to their neighbours, so that a single small cell is still seen. */
function grow(
  flags: Uint8Array,
  width: number,
  height: number,
  reachX: number,
  reachY: number,
): Uint8Array {
  const grown = flags.slice();
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const flag = flags[y * width + x]!;
      if (flag === 255 || !(flag & (HAS_NAN | HAS_INF))) continue;
      for (let v = Math.max(0, y - reachY); v <= Math.min(height - 1, y + reachY); v++) {
        for (let u = Math.max(0, x - reachX); u <= Math.min(width - 1, x + reachX); u++) {
          if (grown[v * width + u] !== 255) grown[v * width + u]! |= flag & (HAS_NAN | HAS_INF);
        }
      }
    }
  }
  return grown;
}
