/** Colour ramps as tables of 256 packed pixels (as `ImageData` holds them: red in the lowest byte). */

export type RampName = "viridis" | "cividis" | "diverging";
export type Rgb = readonly [red: number, green: number, blue: number];

const VIRIDIS =
  "440154 481769 472a7a 433d84 3d4e8a 355e8d 2e6d8e 297b8e 23898e 1f978b 21a585 2eb37c 46c06f 65cb5e 89d548 b0dd2f d8e219 fde725";

/** Negative, zero, positive. Zero is the colour of the page, so that what is not near 0 stands out. */
const DIVERGING = {
  light: ["0b3d78", "2f7fc1", "9cc8e6", "f4f4f1", "f2b877", "d2691e", "7a2e05"],
  dark: ["a6d8ff", "4fa3e3", "1f5b8f", "20242b", "8f4a14", "e08a3c", "ffd9a8"],
};

/** Marks for what no ramp may show. */
export const MARKS = {
  light: { nan: "d6006c", inf: "7a1fd1", missing: "d4d7dc", paper: "ffffff" },
  dark: { nan: "ff4d9d", inf: "c58bff", missing: "3a434e", paper: "0d1014" },
};

export function ramp(name: RampName, dark: boolean): Uint32Array {
  const key = `${name}/${dark}`;
  let table = tables.get(key);
  if (!table) {
    table = Uint32Array.from({ length: 256 }, (_, i) => pack(rampColour(name, dark, i / 255)));
    tables.set(key, table);
  }
  return table;
}

const tables = new Map<string, Uint32Array>();

/** A ramp for how much there is of something, from the page's own colour up. */
export function densityRamp(dark: boolean): Uint32Array {
  if (dark) return ramp("viridis", true);
  const white: Rgb = [255, 255, 255];
  return Uint32Array.from({ length: 256 }, (_, i) =>
    pack(mix(white, rampColour("viridis", false, 1 - i / 255), Math.min(1, 0.15 + i / 100))),
  );
}

export function rampColour(name: RampName, dark: boolean, t: number): Rgb {
  if (name === "cividis") return cividis(t);
  const anchors = name === "viridis" ? VIRIDIS.split(" ") : DIVERGING[dark ? "dark" : "light"];
  const at = t * (anchors.length - 1);
  const index = Math.min(Math.floor(at), anchors.length - 2);
  return mix(parseHex(anchors[index]!), parseHex(anchors[index + 1]!), at - index);
}

/** The polynomial fit of cividis that d3-scale-chromatic uses. */
function cividis(t: number): Rgb {
  const red = -4.54 - t * (35.34 - t * (2381.73 - t * (6402.7 - t * (7024.72 - t * 2710.57))));
  const green = 32.49 + t * (170.73 + t * (52.82 - t * (131.46 - t * (176.58 - t * 67.37))));
  const blue = 81.24 + t * (442.36 - t * (2482.43 - t * (6167.24 - t * (6614.94 - t * 2475.67))));
  return [clampByte(red), clampByte(green), clampByte(blue)];
}

export function parseHex(hex: string): Rgb {
  const word = Number.parseInt(hex.replace("#", ""), 16);
  return [word >> 16, (word >> 8) & 255, word & 255];
}

export function pack([red, green, blue]: Rgb): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

export function toCss(colour: Rgb): string {
  return `rgb(${colour.join(" ")})`;
}

/** A CSS gradient that shows a ramp from left to right. */
export function rampGradient(name: RampName, dark: boolean): string {
  const stops = Array.from({ length: 17 }, (_, i) => toCss(rampColour(name, dark, i / 16)));
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/** Relative luminance, 0 to 1, as WCAG defines it. */
export function luminance(colour: Rgb): number {
  const [red, green, blue] = colour.map((byte) => {
    const share = byte / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as unknown as Rgb;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function mix(from: Rgb, to: Rgb, t: number): Rgb {
  return [0, 1, 2].map((i) => clampByte(from[i]! + (to[i]! - from[i]!) * t)) as unknown as Rgb;
}

function clampByte(value: number): number {
  return Math.max(0, Math.min(255, Math.round(value)));
}
