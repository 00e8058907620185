import { describe, expect, it } from "vitest";
import { nameFilter, searchNames } from "./filter";

describe("filters", () => {
  it("take text or a regular expression", () => {
    expect(["a.attn", "a.fc"].filter(nameFilter("ATTN$"))).toEqual(["a.attn"]);
    expect(["relu#2:out.(0", "x"].filter(nameFilter("(0"))).toEqual(["relu#2:out.(0"]);
  });

  it("find names that hold all words, the best first", () => {
    const names = ["blocks.0.attn.weight", "attn", "blocks.0.fc"];
    expect(searchNames(names, "attn", (name) => name)).toEqual(["attn", "blocks.0.attn.weight"]);
    expect(searchNames(names, "0 fc", (name) => name)).toEqual(["blocks.0.fc"]);
  });
});
