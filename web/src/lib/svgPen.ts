/** Draws as a canvas does, and writes down SVG: what is painted on the screen can be saved as lines and
 * text. Knows the part of a canvas's context that this page uses. */
export class SvgPen {
  fillStyle = "#000";
  strokeStyle = "#000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "10px sans-serif";
  textAlign = "left";
  textBaseline = "alphabetic";
  lineJoin = "miter";
  lineCap = "butt";

  private readonly parts: string[] = [];
  private path = "";
  /** Where the path is. */
  private at: [x: number, y: number] = [0, 0];
  private dash: number[] = [];
  private clips = 0;
  private readonly saved: [state: Record<string, unknown>, groups: number][] = [];
  private groups = 0;

  constructor(
    private readonly width: number,
    private readonly height: number,
    private readonly measure: (text: string, font: string) => number,
  ) {}

  toString(): string {
    const open = "</g>".repeat(this.groups);
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}">\n${this.parts.join("\n")}${open}\n</svg>\n`;
  }

  measureText(text: string) {
    return { width: this.measure(text, this.font) };
  }

  clearRect(): void {}

  fillRect(x: number, y: number, width: number, height: number): void {
    this.put(
      `<rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" ${this.paint("fill")}/>`,
    );
  }

  fillText(text: string, x: number, y: number): void {
    const anchor = { center: "middle", right: "end", end: "end" }[this.textAlign] ?? "start";
    const baseline = { middle: "central", top: "hanging" }[this.textBaseline] ?? "alphabetic";
    this.put(
      `<text x="${round(x)}" y="${round(y)}" text-anchor="${anchor}" dominant-baseline="${baseline}" style="${escapeXml(`font: ${this.font}; white-space: pre`)}" ${this.paint("fill")}>${escapeXml(text)}</text>`,
    );
  }

  drawImage(image: HTMLCanvasElement, x: number, y: number, width: number, height: number): void {
    const data = image.toDataURL("image/png");
    this.put(
      `<image x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" preserveAspectRatio="none" style="image-rendering: pixelated" href="${data}"/>`,
    );
  }

  beginPath(): void {
    this.path = "";
  }

  closePath(): void {
    this.path += "Z";
  }

  moveTo(x: number, y: number): void {
    this.path += `M${round(x)} ${round(y)}`;
    this.at = [x, y];
  }

  lineTo(x: number, y: number): void {
    this.path += `${this.path ? "L" : "M"}${round(x)} ${round(y)}`;
    this.at = [x, y];
  }

  bezierCurveTo(a: number, b: number, c: number, d: number, x: number, y: number): void {
    this.path += `C${[a, b, c, d, x, y].map(round).join(" ")}`;
    this.at = [x, y];
  }

  quadraticCurveTo(a: number, b: number, x: number, y: number): void {
    this.path += `Q${[a, b, x, y].map(round).join(" ")}`;
    this.at = [x, y];
  }

  /** A corner rounded off between two lines; a quarter of a circle, nearly. */
  arcTo(cornerX: number, cornerY: number, x: number, y: number, radius: number): void {
    const [fromX, fromY] = this.at;
    const before = Math.hypot(fromX - cornerX, fromY - cornerY) || 1;
    const after = Math.hypot(x - cornerX, y - cornerY) || 1;
    const r = Math.min(radius, before, after);
    this.lineTo(
      cornerX + ((fromX - cornerX) * r) / before,
      cornerY + ((fromY - cornerY) * r) / before,
    );
    this.quadraticCurveTo(
      cornerX,
      cornerY,
      cornerX + ((x - cornerX) * r) / after,
      cornerY + ((y - cornerY) * r) / after,
    );
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.path += `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}Z`;
  }

  roundRect(x: number, y: number, width: number, height: number, radius = 0): void {
    const r = Math.max(0, Math.min(radius, width / 2, height / 2));
    const [wide, high] = [round(width - 2 * r), round(height - 2 * r)];
    const turn = (dx: number, dy: number) => `a${r} ${r} 0 0 1 ${round(dx * r)} ${round(dy * r)}`;
    this.path += `M${round(x + r)} ${round(y)}h${wide}${turn(1, 1)}v${high}${turn(-1, 1)}h${-wide}${turn(-1, -1)}v${-high}${turn(1, -1)}Z`;
  }

  arc(x: number, y: number, radius: number): void {
    const r = round(radius);
    this.path += `M${round(x - radius)} ${round(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
  }

  setLineDash(dash: number[]): void {
    this.dash = dash;
  }

  fill(): void {
    if (this.path) this.put(`<path d="${this.path}" ${this.paint("fill")}/>`);
  }

  stroke(): void {
    if (!this.path) return;
    const dash = this.dash.length > 0 ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    this.put(
      `<path d="${this.path}" fill="none" ${this.paint("stroke")} stroke-width="${round(this.lineWidth)}" stroke-linejoin="${this.lineJoin}" stroke-linecap="${this.lineCap}"${dash}/>`,
    );
  }

  clip(): void {
    const id = `clip${this.clips++}`;
    this.put(`<clipPath id="${id}"><path d="${this.path}"/></clipPath><g clip-path="url(#${id})">`);
    this.groups++;
  }

  save(): void {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline } = this;
    const state = { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline };
    this.saved.push([state, this.groups]);
  }

  restore(): void {
    const [state, groups] = this.saved.pop() ?? [{}, this.groups];
    Object.assign(this, state);
    for (; this.groups > groups; this.groups--) this.put("</g>");
  }

  private paint(kind: "fill" | "stroke"): string {
    const colour = kind === "fill" ? this.fillStyle : this.strokeStyle;
    const alpha = this.globalAlpha < 1 ? ` ${kind}-opacity="${round(this.globalAlpha)}"` : "";
    return `${kind}="${escapeXml(colour)}"${alpha}`;
  }

  private put(part: string): void {
    this.parts.push(part);
  }
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}

export function escapeXml(text: string): string {
  const names: Record<string, string> = {
    "<": "lt",
    ">": "gt",
    "&": "amp",
    '"': "quot",
    "'": "#39",
  };
  return text.replace(/[<>&"']/g, (character) => `&${names[character]};`);
}
