import { describe, expect, it } from "vitest";
import { describeArguments, describeResult, shortFunction, shortSource } from "./calls";
import { formatNumber } from "./format";

const TENSOR = { shape: [128, 5], dtype: "float32", made_by: "SigmoidBackward0", min: 0, max: 0.5 };

describe("a call", () => {
  it("tells its arguments in words", () => {
    const json = JSON.stringify({ input: TENSOR, weight: null, reduction: "none", dim: 1 });
    expect(describeArguments(json, formatNumber)).toEqual([
      { name: "input", text: "float32 128 × 5, 0 … 0.5000, by SigmoidBackward0" },
      { name: "weight", text: "None" },
      { name: "reduction", text: '"none"' },
      { name: "dim", text: "1.000" },
    ]);
  });

  it("tells what is no tensor, and what is no JSON", () => {
    expect(describeArguments("", formatNumber)).toEqual([]);
    expect(describeArguments("<b>", formatNumber)).toEqual([{ name: "", text: '"<b>"' }]);
    expect(describeResult('[true, {"a": 1}]', formatNumber)).toBe('[True, {"a":1}]');
    expect(describeResult('{"shape": [], "dtype": "bool"}', formatNumber)).toBe("bool scalar");
  });

  it("has short names", () => {
    expect(shortFunction("torch.nn.functional.mse_loss").last).toBe("mse_loss");
    expect(shortFunction("mine")).toEqual({ room: "", last: "mine" });
    expect(shortSource("/home/me/demo/network.py:50")).toBe("demo/network.py:50");
  });
});
