import { expect, test } from "vitest";
import type { Site } from "../connectors/connector";
import { chosenSites, readNumerics } from "./numerics";

const site = (name: string) => ({ name }) as Site;

test("what the address does not say, or says wrongly, is as at first", () => {
  const standard = readNumerics({});
  expect(standard.formats).toContain("float8_e4m3fn");
  expect(readNumerics({ scale2: "much", loss: "all", set: "x" })).toEqual(standard);
  expect(readNumerics({ formats: "none" }).formats).toEqual([]);
  expect(
    readNumerics({ formats: "float16,bfloat16", scale2: "-4", loss: "overflow" }),
  ).toMatchObject({
    formats: ["float16", "bfloat16"],
    scale: "-4",
    loss: "overflow",
  });
});

test("the selected site comes first, and there are not too many", () => {
  const sites = Array.from({ length: 40 }, (_, i) => site(String(i)));
  const byName = new Map(sites.map((each) => [each.name, each]));
  const found = chosenSites("filter", sites, byName, [], sites[7]!);
  expect(found.shown.slice(0, 2).map(({ name }) => name)).toEqual(["7", "0"]);
  expect([found.shown.length, found.all]).toEqual([24, 40]);
  expect(chosenSites("pins", sites, byName, ["3", "gone"], sites[7]!).shown).toEqual([sites[3]]);
  expect(chosenSites("selected", sites, byName, ["3"], null).all).toBe(0);
});
