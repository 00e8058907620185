import { describe, expect, it } from "vitest";
import { totalsOf, treeRows } from "./tree";

const module = (name: string, parameters = 0, type = "Linear") => ({
  name,
  class: type,
  parameters,
  extra: "",
});
const MODULES = [
  module("", 1, "Net"),
  module("embed", 10),
  module("blocks", 0, "ModuleList"),
  module("blocks.0", 0, "Block"),
  module("blocks.0.fc", 7),
  module("blocks.1", 0, "Block"),
  module("blocks.1.fc", 7),
];

describe("totalsOf", () => {
  it("adds what is in a module to its own", () => {
    const totals = totalsOf(MODULES);
    expect(["", "blocks", "blocks.0", "embed"].map((name) => totals.get(name)?.total)).toEqual([
      25, 14, 7, 10,
    ]);
  });
});

describe("treeRows", () => {
  const names = (open: string[], query = "") =>
    treeRows(MODULES, new Set(open), query).map(({ name }) => name);

  it("shows what is in open modules", () => {
    expect(names([])).toEqual([""]);
    expect(names([""])).toEqual(["", "embed", "blocks"]);
    expect(names(["", "blocks", "blocks.1"])).toContain("blocks.1.fc");
    expect(names(["", "blocks.1"])).not.toContain("blocks.1.fc");
  });

  it("finds by name or class, with all that is around it", () => {
    expect(names([], "1 fc")).toEqual(["", "blocks", "blocks.1", "blocks.1.fc"]);
    expect(names([], "modulelist")).toEqual(["", "blocks"]);
    expect(names([], "nothing")).toEqual([]);
  });

  it("tells what was found from what is around it", () => {
    const found = (query: string) =>
      treeRows(MODULES, new Set([""]), query).filter(({ isFound }) => isFound);
    expect(found("1 fc").map(({ name }) => name)).toEqual(["blocks.1.fc"]);
    expect(found("blocks.1").map(({ name }) => name)).toEqual(["blocks.1", "blocks.1.fc"]);
    expect(found("")).toHaveLength(3);
  });

  it("says how deep and what each is called", () => {
    const rows = treeRows(MODULES, new Set(["", "blocks"]), "");
    expect(rows.map(({ label, depth }) => [label, depth])).toEqual([
      ["(model)", 0],
      ["embed", 1],
      ["blocks", 1],
      ["0", 2],
      ["1", 2],
    ]);
  });
});
