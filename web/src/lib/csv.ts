/** Columns as the text of a CSV file, as RFC 4180 has it; numbers in full precision. */
export function toCsv(header: readonly string[], rows: Iterable<readonly unknown[]>): string {
  const lines = [header.map(cell).join(",")];
  for (const row of rows) lines.push(row.map(cell).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

function cell(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  // A spreadsheet takes such a text for a formula, and runs it.
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Lines over the same axis: a row for each place at which any has a value. */
export function linesCsv(
  axis: string,
  lines: readonly { name: string; x: ArrayLike<number>; y: ArrayLike<number> }[],
): string {
  const rows = new Map<number, unknown[]>();
  for (const [index, { x, y }] of lines.entries()) {
    for (let i = 0; i < x.length; i++) {
      const row = rows.get(x[i]!) ?? [x[i]!, ...lines.map(() => null)];
      row[index + 1] = y[i]!;
      rows.set(x[i]!, row);
    }
  }
  const ordered = [...rows.values()].sort((a, b) => Number(a[0]) - Number(b[0]));
  return toCsv([axis, ...lines.map(({ name }) => name)], ordered);
}
