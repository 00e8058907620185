import { legible } from "./truncate";

const integers = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Four significant digits; an exponent below a thousandth and from a million on. */
export function formatNumber(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const magnitude = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (magnitude === 0) return "0";
  if (magnitude < 1e-3) return sign + tidyExponent(magnitude.toExponential(2));
  if (magnitude >= 1e6) return sign + tidyExponent(magnitude.toExponential(3));
  if (magnitude >= 1e4) return sign + integers.format(magnitude);
  return sign + magnitude.toPrecision(4);
}

/** A number for an axis: as short as it can be without losing what tells it from its neighbours. */
export function formatTick(value: number): string {
  const magnitude = Math.abs(value);
  if (magnitude === 0) return "0";
  const sign = value < 0 ? "−" : "";
  if (magnitude < 1e-3 || magnitude >= 1e5) {
    return sign + tidyExponent(magnitude.toExponential(2).replace(/\.?0+e/, "e"));
  }
  return sign + String(Number(magnitude.toPrecision(4)));
}

/** Two significant digits, for the end of a scale. */
export function formatShort(value: number): string {
  return formatTick(Number(value.toPrecision(2)));
}

export function formatInteger(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return integers.format(value);
}

/** A share of a whole: `12.5 %`, and never a rounded 0 or 100 for what is neither. */
export function formatShare(share: number | null | undefined): string {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  if (share === 0) return "0 %";
  if (share === 1) return "100 %";
  const percent = share * 100;
  if (percent < 0.1) return "< 0.1 %";
  if (percent > 99.9 && percent < 100) return "> 99.9 %";
  return `${percent.toFixed(1)} %`;
}

export function formatShape(shape: readonly number[]): string {
  return shape.length === 0 ? "scalar" : shape.join(" × ");
}

export function formatDuration(secs: number | null | undefined): string {
  if (secs === null || secs === undefined || !Number.isFinite(secs)) return "–";
  if (secs < 1e-3) return `${(secs * 1e6).toFixed(0)} µs`;
  if (secs < 1) return `${(secs * 1e3).toPrecision(3)} ms`;
  if (secs < 60) return `${secs.toFixed(1)} s`;
  const minutes = Math.floor(secs / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(secs % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** The age of something, in its largest unit: `now`, `12 s`, `4 min`, `3 h`, `2 d`. */
export function formatAge(secs: number | null | undefined): string {
  if (secs === null || secs === undefined || !Number.isFinite(secs)) return "–";
  if (secs < 2) return "now";
  if (secs < 60) return `${Math.floor(secs)} s`;
  if (secs < 3600) return `${Math.floor(secs / 60)} min`;
  if (secs < 86_400) return `${Math.floor(secs / 3600)} h`;
  return `${Math.floor(secs / 86_400)} d`;
}

/** Any JSON value on one line, as a person would write it. */
export function formatValue(value: unknown): string {
  if (typeof value === "string") return legible(value);
  if (typeof value === "number")
    return Number.isInteger(value) ? String(value) : formatNumber(value);
  if (Array.isArray(value) && value.length === 0) return "none";
  return legible(JSON.stringify(value) ?? "–");
}

function tidyExponent(text: string): string {
  return text.replace("e+", "e");
}

/** So many of a thing, or of all of them: `1 line`, `3 of 12 lines`. */
export function formatShown(shown: number, all: number, thing: string): string {
  const things = all === 1 ? thing : `${thing}s`;
  return shown === all
    ? `${formatInteger(all)} ${things}`
    : `${formatInteger(shown)} of ${formatInteger(all)} ${things}`;
}

/** A count in few characters: `950`, `12.3 k`, `1.76 M`, `7.24 G`. */
export function formatCount(count: number): string {
  const units = ["", " k", " M", " G", " T"];
  let power = 0;
  let value = count;
  while (value >= 999.5 && power < units.length - 1) {
    value /= 1000;
    power++;
  }
  return power === 0 ? String(count) : `${Number(value.toPrecision(3))}${units[power]}`;
}
