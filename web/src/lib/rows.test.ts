import { describe, expect, it } from "vitest";
import { blocksOf } from "./blocks";
import { groupStarts, inNetworkOrder, rowLabels, zoomedRows } from "./rows";

describe("rows of sites", () => {
  const site = (name: string, module: string, tensor_class = "output") => ({
    name,
    module,
    tensor_class,
  });
  const sites = [
    site("b.0.fc:out.0", "b.0.fc"),
    site("b.1.fc:out.0", "b.1.fc"),
    site("b.0.fc.weight", "b.0.fc", "parameter"),
  ];

  it("are grouped by module in the order of the network", () => {
    const grouped = inNetworkOrder(sites);
    expect(grouped.map(({ name }) => name)).toEqual([
      "b.0.fc:out.0",
      "b.0.fc.weight",
      "b.1.fc:out.0",
    ]);
    expect(groupStarts(grouped, blocksOf(sites.map(({ module }) => module)))).toEqual([2]);
  });

  it("of the whole stand where they are seen", () => {
    const all = [
      site("x", "", "tensor"),
      site("(model):in.0", "", "input"),
      ...sites.slice(0, 2),
      site("(model):out.0", ""),
      site("loss", "", "tensor"),
      site("scale", "", "parameter"),
      sites[2]!,
      site("scale:exp_avg", "", "optimizer"),
    ];
    expect(inNetworkOrder(all).map(({ name }) => name)).toEqual([
      "x",
      "(model):in.0",
      "scale",
      "scale:exp_avg",
      "b.0.fc:out.0",
      "b.0.fc.weight",
      "b.1.fc:out.0",
      "(model):out.0",
      "loss",
    ]);
  });

  it("have labels that never collide", () => {
    const many = Array.from({ length: 400 }, (_, i) => site(`m.${i}.w`, `m.${i}`));
    expect(rowLabels(many, 0, 400, 14)).toHaveLength(400);
    const whole = [site("loss", ""), site("targets", "")];
    const named = rowLabels([...whole, ...whole], 0, 4, 6);
    expect(named.map(({ row, text }) => [row, text])).toEqual([
      [0, "loss"],
      [2, "loss"],
    ]);
    for (const height of [0.07, 1.5, 5]) {
      const tops = rowLabels(many, 0, 400, height).map(({ top }) => top);
      expect(tops.at(-1)).toBeLessThanOrEqual(400 * height - 12);
      for (const [i, top] of tops.slice(1).entries())
        expect(top - tops[i]!).toBeGreaterThanOrEqual(12);
    }
  });
});

describe("zoomed rows", () => {
  const sites = ["a", "b", "c"].map((name) => ({ name }));

  it("are found by the names of the first and the last", () => {
    expect(zoomedRows({ top: "b", bottom: "c" }, sites)).toEqual({ first: 1, last: 2 });
    expect(zoomedRows({ top: "a", bottom: "a" }, sites)).toEqual({ first: 0, last: 0 });
  });

  it("are all where one is not there or they are the wrong way round", () => {
    expect(zoomedRows({}, sites)).toBeNull();
    expect(zoomedRows({ top: "b", bottom: "gone" }, sites)).toBeNull();
    expect(zoomedRows({ top: "c", bottom: "a" }, sites)).toBeNull();
  });
});
