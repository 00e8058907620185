/** One argument or result of a call, in words. */
export interface Described {
  name: string;
  text: string;
}

interface TensorLike {
  shape: number[];
  dtype: string;
  requires_grad?: boolean;
  made_by?: string;
  min?: number;
  max?: number;
}

/** `float32 128 × 5, 0.4998 … 0.5104, by SigmoidBackward0` of what was written down of a tensor; other
 * things as they are. */
export function describeValue(value: unknown, format: (value: number) => string): string {
  if (isTensor(value)) return describeTensor(value, format);
  if (Array.isArray(value))
    return `[${value.map((each) => describeValue(each, format)).join(", ")}]`;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return format(value);
  return typeof value === "string" ? `"${value}"` : JSON.stringify(value);
}

function describeTensor(
  { shape, dtype, min, max, made_by }: TensorLike,
  format: (v: number) => string,
) {
  const size = shape.length === 0 ? "scalar" : shape.join(" × ");
  const range =
    typeof min !== "number" || typeof max !== "number"
      ? ""
      : min === max
        ? `, ${format(min)}`
        : `, ${format(min)} … ${format(max)}`;
  return `${dtype} ${size}${range}${made_by ? `, by ${made_by}` : ""}`;
}

function isTensor(value: unknown): value is TensorLike {
  return (
    typeof value === "object" &&
    value !== null &&
    "dtype" in value &&
    "shape" in value &&
    Array.isArray((value as TensorLike).shape)
  );
}

/** The arguments of a call; text that is no JSON stands for itself. */
export function describeArguments(json: string, format: (v: number) => string): Described[] {
  const parsed = parse(json);
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
    return json === "" ? [] : [{ name: "", text: describeValue(parsed, format) }];
  }
  return Object.entries(parsed).map(([name, value]) => ({
    name,
    text: describeValue(value, format),
  }));
}

export function describeResult(json: string, format: (v: number) => string): string {
  return json === "" ? "" : describeValue(parse(json), format);
}

function parse(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return json;
  }
}

/** `functional.cross_entropy` of `torch.nn.functional.cross_entropy`: what tells it from others. */
export function shortFunction(name: string): { room: string; last: string } {
  const at = name.lastIndexOf(".");
  return { room: name.slice(0, at + 1), last: name.slice(at + 1) };
}

/** `demo/network.py:50` of a path: its last two parts. */
export function shortSource(source: string): string {
  return source.split(/[/\\]/).slice(-2).join("/");
}
