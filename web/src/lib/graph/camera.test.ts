import { describe, expect, it } from "vitest";
import {
  between,
  fit,
  fitReadable,
  frame,
  isInSight,
  pan,
  reveal,
  uncover,
  zoomAt,
} from "./camera";

const rect = (x: number, y: number, width: number, height: number) => ({ x, y, width, height });

describe("fit", () => {
  it("shows all of a large picture, in the middle", () => {
    const { x, y, zoom } = fit(rect(0, 0, 4000, 1000), 840, 600);
    expect(zoom).toBeCloseTo(0.202);
    expect(x + 420 / zoom).toBeCloseTo(2000);
    expect(y + 300 / zoom).toBeCloseTo(500);
  });

  it("keeps room free at the right, and else stays in the middle", () => {
    const wide = fit(rect(0, 0, 4000, 1000), 1140, 600, 300);
    expect((4000 - wide.x) * wide.zoom).toBeCloseTo(1140 - 300 - 16);
    const narrow = rect(0, 0, 300, 400);
    expect(fit(narrow, 1140, 600, 300)).toEqual(fit(narrow, 1140, 600));
    const between = fit(rect(0, 0, 600, 400), 1140, 600, 300);
    expect((600 - between.x) * between.zoom).toBeCloseTo(1140 - 300 - 16);
    expect(between.zoom).toBe(fit(rect(0, 0, 600, 400), 1140, 600).zoom);
  });

  it("does not blow up a small one", () => {
    expect(fit(rect(0, 0, 10, 10), 800, 600).zoom).toBeLessThan(1.2);
  });
});

describe("frame", () => {
  const tall = rect(0, 0, 300, 9000);

  it("is all of what can be read, else what is around something", () => {
    const [around, focus] = [rect(50, 5000, 200, 400), rect(60, 5100, 168, 40)];
    const small = rect(0, 0, 300, 500);
    expect(frame(small, around, focus, 800, 600)).toEqual(fit(small, 800, 600));
    expect(frame(tall, around, focus, 800, 600)).toEqual(fit(around, 800, 600));
  });

  it("is around the thing itself where that is too much", () => {
    const { x, y, zoom } = frame(
      tall,
      rect(50, 1000, 200, 8000),
      rect(60, 5100, 168, 40),
      800,
      600,
    );
    expect(zoom).toBeGreaterThan(0.6);
    expect(y + 300 / zoom).toBeCloseTo(5120);
    expect(x + 400 / zoom).toBeCloseTo(150);
  });
});

describe("fitReadable", () => {
  const tall = rect(0, 0, 300, 9000);

  it("is all of what can be read", () => {
    const small = rect(0, 0, 300, 500);
    expect(fitReadable(small, rect(0, 0, 9, 9), 800, 600)).toEqual(fit(small, 800, 600));
    expect(fitReadable(tall, null, 800, 600)).toEqual(fit(tall, 800, 600));
  });

  it("is around what matters where all is too much", () => {
    const { x, y, zoom } = fitReadable(tall, rect(100, 5000, 168, 40), 800, 600);
    expect(zoom).toBeGreaterThan(0.6);
    expect(x + 400 / zoom).toBeCloseTo(150);
    expect(y).toBeLessThan(5000);
    expect(y + 600 / zoom).toBeGreaterThan(5040);
  });

  it("is in the middle where only empty edges have no room", () => {
    const { y, zoom } = fitReadable(rect(0, 0, 300, 800), rect(0, 0, 168, 40), 500, 500);
    expect(zoom).toBe(0.64);
    expect(y + 250 / zoom).toBeCloseTo(400);
  });

  it("does not look past the ends", () => {
    const { y, zoom } = fitReadable(tall, rect(0, 0, 168, 40), 800, 600);
    expect(y).toBeCloseTo(-16 / zoom);
  });
});

describe("moving", () => {
  const camera = { x: 10, y: 20, zoom: 2 };

  it("zooms around the pointer", () => {
    const next = zoomAt(camera, 100, 50, 2);
    expect(next.x + 100 / next.zoom).toBeCloseTo(camera.x + 100 / camera.zoom);
    expect(next.y + 50 / next.zoom).toBeCloseTo(camera.y + 50 / camera.zoom);
  });

  it("follows the hand", () => expect(pan(camera, 20, -10)).toEqual({ x: 0, y: 25, zoom: 2 }));

  it("reveals no more than it must", () => {
    expect(reveal(camera, rect(40, 50, 20, 20), 400, 300)).toEqual(camera);
    expect(reveal(camera, rect(40, 500, 20, 20), 400, 300)).toEqual({ ...camera, y: 378 });
  });

  it("knows what is in sight", () => {
    expect(isInSight(camera, rect(0, 0, 15, 25), 400, 300)).toBe(true);
    expect(isInSight(camera, rect(0, 0, 10, 25), 400, 300)).toBe(false);
    expect(isInSight(camera, rect(40, 170, 20, 20), 400, 300)).toBe(false);
  });

  it("moves from one place to another", () => {
    const to = { x: 0, y: 0, zoom: 8 };
    expect(between(camera, to, 0)).toEqual(camera);
    expect(between(camera, to, 0.5).zoom).toBeCloseTo(4);
    expect(between(camera, to, 1).zoom).toBeCloseTo(8);
  });
});

describe("uncover", () => {
  const camera = { x: 0, y: 0, zoom: 1 };
  const corner = rect(300, 200, 100, 100);

  it("leaves what is beside the corner, or above it", () => {
    expect(uncover(camera, rect(0, 250, 284, 40), corner)).toBe(camera);
    expect(uncover(camera, rect(310, 0, 80, 184), corner)).toBe(camera);
  });

  it("moves what is under it the shorter way", () => {
    expect(uncover(camera, rect(320, 190, 60, 40), corner)).toEqual({ ...camera, y: 46 });
    expect(uncover(camera, rect(270, 240, 60, 40), corner)).toEqual({ ...camera, x: 46 });
  });

  it("moves it the way on which there is room", () => {
    expect(uncover(camera, rect(20, 240, 300, 40), corner)).toEqual({ ...camera, y: 96 });
    expect(uncover(camera, rect(320, 20, 60, 190), corner)).toEqual({ ...camera, x: 96 });
  });

  it("leaves what is too large for any", () =>
    expect(uncover(camera, rect(20, 20, 360, 260), corner)).toBe(camera));

  it("moves as many pixels, however near the picture is", () => {
    const near = { x: 10, y: 20, zoom: 2 };
    const next = uncover(near, rect(170, 120, 30, 20), corner);
    expect((120 + 20 - next.y) * 2).toBeCloseTo(200 - 16);
    expect(next.x).toBe(near.x);
  });
});
