/** How the cells of a layer lie in a rectangle: the last two dimensions, one slice of the others. */
export interface Grid {
  rows: number;
  columns: number;
  slices: number;
  /** The cells of a slice; a vector's last row may be shorter. */
  perSlice: number;
}

export function gridOf(shape: readonly number[]): Grid {
  if (shape.length <= 1) {
    const size = shape[0] ?? 1;
    const columns = size <= 16 ? size : Math.ceil(Math.sqrt(size));
    return { rows: Math.ceil(size / columns), columns, slices: 1, perSlice: size };
  }
  const [rows, columns] = shape.slice(-2) as [number, number];
  const slices = shape.slice(0, -2).reduce((product, size) => product * size, 1);
  return { rows, columns, slices, perSlice: rows * columns };
}

/** The cells within a square brush around a place, in one slice. */
export function brushed(
  grid: Grid,
  slice: number,
  row: number,
  column: number,
  size: number,
): number[] {
  const cells: number[] = [];
  const before = Math.floor((size - 1) / 2);
  for (let y = row - before; y < row - before + size; y++) {
    for (let x = column - before; x < column - before + size; x++) {
      const cell = y * grid.columns + x;
      const isInside = y >= 0 && y < grid.rows && x >= 0 && x < grid.columns;
      if (isInside && cell < grid.perSlice) cells.push(slice * grid.perSlice + cell);
    }
  }
  return cells;
}

/** The next cell of the same slice in a direction; null at its edge. */
export function moveIn(
  shape: readonly number[],
  cell: number,
  down: number,
  right: number,
): number | null {
  const { rows, columns, perSlice } = gridOf(shape);
  const slice = Math.floor(cell / perSlice);
  const at = cell % perSlice;
  const row = Math.floor(at / columns) + down;
  const column = (at % columns) + right;
  const isInside = row >= 0 && row < rows && column >= 0 && column < columns;
  const next = row * columns + column;
  return isInside && next < perSlice ? slice * perSlice + next : null;
}

/** A place among so many as a place along each dimension. */
export function indicesOf(sizes: readonly number[], place: number): number[] {
  const indices: number[] = [];
  let rest = place;
  for (const size of [...sizes].reverse()) {
    indices.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return indices;
}

/** The opposite: which slice has these places along its dimensions. */
export function sliceOf(sizes: readonly number[], indices: readonly number[]): number {
  return sizes.reduce((place, size, dim) => place * size + indices[dim]!, 0);
}

/** A cell by its position, as `2, 0, 13`. */
export function cellName(shape: readonly number[], cell: number): string {
  return indicesOf(shape, cell).join(", ");
}

export function largest(values: Float32Array | null): number {
  let most = 0;
  for (const value of values ?? []) {
    const size = Math.abs(value);
    if (size > most && size < Number.POSITIVE_INFINITY) most = size;
  }
  return most;
}
