import { expect, it } from "vitest";
import { truncateMiddle } from "./truncate";

it("cuts names in the middle", () => {
  expect(truncateMiddle("blocks.3.attn:out.0", 40)).toBe("blocks.3.attn:out.0");
  expect(truncateMiddle("blocks.3.attn:out.0", 11)).toBe("bloc…:out.0");
  expect(truncateMiddle("abc", 1)).toBe("…");
});

it("shows marks that turn the direction of text", () => {
  expect(truncateMiddle("a\u202eb:in.0", 40)).toBe("a\\u202eb:in.0");
});
