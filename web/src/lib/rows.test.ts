import { describe, expect, it } from "vitest";
import { groupByModule, groupStarts, rowLabels } from "./rows";

describe("rows of sites", () => {
  const site = (name: string, module: string) => ({ name, module });
  const sites = [
    site("b.0.fc:out.0", "b.0.fc"),
    site("b.1.fc:out.0", "b.1.fc"),
    site("b.0.fc.weight", "b.0.fc"),
  ];

  it("are grouped by module in the order of the network", () => {
    const grouped = groupByModule(sites);
    expect(grouped.map(({ name }) => name)).toEqual([
      "b.0.fc:out.0",
      "b.0.fc.weight",
      "b.1.fc:out.0",
    ]);
    expect(groupStarts(grouped)).toEqual([2]);
  });

  it("have labels that never collide", () => {
    const many = Array.from({ length: 400 }, (_, i) => site(`m.${i}.w`, `m.${i}`));
    expect(rowLabels(many, 0, 400, 14)).toHaveLength(400);
    for (const height of [0.07, 1.5, 5]) {
      const tops = rowLabels(many, 0, 400, height).map(({ top }) => top);
      expect(tops.at(-1)).toBeLessThanOrEqual(400 * height - 12);
      for (const [i, top] of tops.slice(1).entries())
        expect(top - tops[i]!).toBeGreaterThanOrEqual(12);
    }
  });
});
