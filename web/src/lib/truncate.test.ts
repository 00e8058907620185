import { expect, it } from "vitest";
import { truncateMiddle } from "./truncate";

it("cuts names in the middle", () => {
  expect(truncateMiddle("blocks.3.attn:out.0", 40)).toBe("blocks.3.attn:out.0");
  expect(truncateMiddle("blocks.3.attn:out.0", 11)).toBe("bloc…:out.0");
  expect(truncateMiddle("abc", 1)).toBe("…");
});

it("keeps the numbers of blocks in long paths", () => {
  const name = "transformer.h.0.attn.resid_dropout";
  expect(truncateMiddle(name, 30)).toBe("tra…mer.h.0.attn.resid_dropout");
  expect(truncateMiddle(name, 23)).toBe("t…r.h.0.attn.resid…pout");
  expect(truncateMiddle("transformer.h.0.attn.c_attn.weight:exp_avg", 28)).toBe(
    "t…r.h.0.attn.c…n.weigh…p_avg",
  );
  for (let length = 1; length < 40; length++) {
    expect(truncateMiddle(name, length).length).toBeLessThanOrEqual(length);
  }
});

it("shows marks that turn the direction of text", () => {
  expect(truncateMiddle("a\u202eb:in.0", 40)).toBe("a\\u202eb:in.0");
});
