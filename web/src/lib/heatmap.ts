import { MARKS, pack, parseHex, ramp } from "./colour";
import { toCsv } from "./csv";
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
  const { site, column, value, nans: nansOf, infs: infsOf } = table;
  for (let i = 0; i < site.length; i++) {
    const cell = rowOfSite[site[i]!]! * width + column[i]!;
    const found = value[i] ?? Number.NaN;
    const isOverflow = found === Number.POSITIVE_INFINITY || found === Number.NEGATIVE_INFINITY;
    values[cell] = isOverflow ? Number.NaN : found;
    let flag = isOverflow ? PRESENT | HAS_INF : PRESENT;
    if (nansOf[i]! > 0) {
      nans[cell] = nansOf[i]!;
      flag |= HAS_NAN;
    }
    if (infsOf[i]! > 0) {
      infs[cell] = infsOf[i]!;
      flag |= HAS_INF;
    }
    flags[cell] = flag;
  }
  return { columns, rowOfSite, values, flags, nans, infs };
}

function numberRows(site: ArrayLike<number>, sites: number) {
  let highest = sites - 1;
  for (let i = 0; i < site.length; i++) if (site[i]! > highest) highest = site[i]!;
  const rowOfSite = new Int32Array(highest + 1).fill(-1);
  let rows = 0;
  let before = -1;
  for (let i = 0; i < site.length; i++) {
    const number = site[i]!;
    if (number === before) continue;
    before = number;
    if (rowOfSite[number] === -1) rowOfSite[number] = rows++;
  }
  return { rowOfSite, rows };
}

export function valueIn(matrix: HeatmapMatrix, { site }: { site: number }, column: number): number {
  return matrix.values[matrix.rowOfSite[site]! * matrix.columns.length + column]!;
}

/** A row for each site, a column for each stretch of steps. */
export function matrixCsv(
  sites: readonly { site: number; name: string }[],
  matrix: HeatmapMatrix,
): string {
  const steps = matrix.columns.map(([first, last]) =>
    first === last ? `step ${first}` : `steps ${first} to ${last}`,
  );
  return toCsv(
    ["site", ...steps],
    sites.map((site) => [site.name, ...steps.map((_, column) => valueIn(matrix, site, column))]),
  );
}

/** Each cell's colour as an index into the ramp: done once, so that scrolling only copies. */
export function rampIndices(matrix: HeatmapMatrix, scale: ColourScale): Uint8Array {
  const { values } = matrix;
  const width = matrix.columns.length;
  const indices = new Uint8Array(values.length);
  const { place } = scale;
  for (let start = 0; start < values.length; start += width) {
    const reference =
      scale.name === "relative" ? (median(values.subarray(start, start + width)) ?? 0) : 0;
    for (let cell = start; cell < start + width; cell++) {
      const at = place(values[cell]!, reference) * 255;
      indices[cell] = at > 0 ? Math.min(255, at) : 0;
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
  private readonly firstColumn: Int32Array;
  private readonly table: Uint32Array;
  /** How far each place of the ramp is from where it begins. */
  private readonly strength: Uint8Array;
  // Of each column, over all rows of the line: cells are read once, however many pixels show them.
  private readonly strongest: Int16Array;
  private readonly flagsOfColumn: Uint8Array;

  constructor(
    private readonly width: number,
    private readonly matrix: HeatmapMatrix,
    private readonly indices: Uint8Array,
    scale: ColourScale,
    dark: boolean,
  ) {
    const columns = matrix.columns.length;
    this.colours = new Uint32Array(width);
    this.flags = new Uint8Array(width);
    this.strongest = new Int16Array(columns);
    this.flagsOfColumn = new Uint8Array(columns);
    this.table = ramp(scale.ramp, dark);
    const middle = scale.ramp === "diverging" ? 127.5 : 0;
    this.strength = Uint8Array.from({ length: 256 }, (_, index) => Math.abs(index - middle));
    this.firstColumn = Int32Array.from({ length: width + 1 }, (_, x) =>
      Math.floor((x * columns) / width + 1e-9),
    );
  }

  read(rows: Int32Array, top: number, bottom: number): void {
    this.strongest.fill(-1);
    this.flagsOfColumn.fill(0);
    for (let row = top; row < bottom && row < rows.length; row++) {
      if (rows[row]! >= 0) this.add(rows[row]! * this.matrix.columns.length);
    }
    // A line of pixels without any row is outside the heatmap and stays empty.
    const isOutside = top >= rows.length;
    const strongest = this.strongest;
    const flagsOfColumn = this.flagsOfColumn;
    const firstColumn = this.firstColumn;
    const strength = this.strength;
    for (let x = 0; x < this.width; x++) {
      const first = firstColumn[x]!;
      const last = Math.max(first + 1, firstColumn[x + 1]!);
      let index = strongest[first]!;
      let flag = flagsOfColumn[first]!;
      for (let column = first + 1; column < last; column++) {
        flag |= flagsOfColumn[column]!;
        const other = strongest[column]!;
        if (index < 0 || (other >= 0 && strength[other]! > strength[index]!)) index = other;
      }
      this.colours[x] = index < 0 ? 0 : this.table[index]!;
      this.flags[x] = isOutside ? 255 : flag;
      if (!isOutside && (index < 0 || flag > PRESENT)) this.anyMarks = true;
    }
  }

  private add(start: number): void {
    const { values, flags } = this.matrix;
    const strongest = this.strongest;
    const flagsOfColumn = this.flagsOfColumn;
    const indices = this.indices;
    const strength = this.strength;
    for (let column = 0; column < strongest.length; column++) {
      const cell = start + column;
      flagsOfColumn[column]! |= flags[cell]!;
      if (Number.isNaN(values[cell]!)) continue;
      const held = strongest[column]!;
      if (held < 0 || strength[indices[cell]!]! > strength[held]!)
        strongest[column] = indices[cell]!;
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
      if (flag <= PRESENT || flag === 255) continue;
      for (let v = Math.max(0, y - reachY); v <= Math.min(height - 1, y + reachY); v++) {
        for (let u = Math.max(0, x - reachX); u <= Math.min(width - 1, x + reachX); u++) {
          if (grown[v * width + u] !== 255) grown[v * width + u]! |= flag & (HAS_NAN | HAS_INF);
        }
      }
    }
  }
  return grown;
}
