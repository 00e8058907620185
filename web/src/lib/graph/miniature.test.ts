import { expect, it } from "vitest";
import { MARKS, pack, parseHex } from "../colour";
import { colourScale } from "../scale";
import { hasMap, mapCorner, mapSize, paintMiniature } from "./miniature";
import type { Placed, Scene } from "./scene";

const WIDTH = 20;
const HEIGHT = 10;
const box = (item: number, x: number, size: number): Placed => ({
  item,
  x,
  y: x,
  width: size,
  height: size,
  isOpen: false,
  depth: 1,
  end: 0,
});

function paint(placed: Placed[], broken: number[] = []) {
  const pixels = new Uint32Array(WIDTH * HEIGHT);
  const values = new Map(
    placed.map(({ item }) => [
      item,
      { vertex: item, value: item, hasNan: broken.includes(item), hasInf: false, of: 1 },
    ]),
  );
  const scale = colourScale("magnitude", "log", [1, 10]);
  const how = { width: WIDTH, height: HEIGHT, by: 0.1, values, scale, dark: true, plain: "#333" };
  paintMiniature(pixels, { placed } as Scene, how);
  return pixels;
}

it("shows every box, however small, and none beyond its edges", () => {
  const pixels = paint([box(1, 0, 1), box(10, 50, 40), box(2, 95, 500)]);
  expect(pixels[0]).not.toBe(0);
  expect(
    pixels.slice(5 * WIDTH + 5, 5 * WIDTH + 9).every((pixel) => pixel === pixels[5 * WIDTH + 5]),
  ).toBe(true);
  expect(pixels).toHaveLength(WIDTH * HEIGHT);
});

it("shows what is broken over the rest", () => {
  const pixels = paint([box(1, 40, 1), box(10, 41, 1)], [1]);
  expect(pixels[4 * WIDTH + 4]).toBe(pack(parseHex(MARKS.dark.nan)));
});

it("is there when more than an empty edge is out of sight", () => {
  const scene = { width: 400, height: 200 };
  const camera = (x: number, y: number, zoom = 1) => ({ x, y, zoom });
  expect(hasMap(scene, camera(0, 0), 400, 200)).toBe(false);
  expect(hasMap(scene, camera(10, -10), 400, 200)).toBe(false);
  expect(hasMap(scene, camera(20, 0), 400, 200)).toBe(true);
  expect(hasMap(scene, camera(0, 0, 2), 400, 200)).toBe(true);
});

it("covers the corner, with its edge", () => {
  const scene = { width: 1680, height: 600 };
  expect(mapSize(scene)).toEqual({ width: 168, height: 60, by: 0.1 });
  expect(mapCorner(scene, 800, 500)).toEqual({ x: 615, y: 423, width: 185, height: 77 });
});
