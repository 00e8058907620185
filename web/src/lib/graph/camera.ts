import { SIZES } from "./scene";

/** What part of the picture is seen: the point at the upper left corner, and pixels for each unit. */
export interface Camera {
  x: number;
  y: number;
  zoom: number;
}

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

const MARGIN = 16;
const LEAST_ZOOM = 0.0005;
const MOST_ZOOM = 4;
const MOST_FIT = 1.15;
/** Below this, boxes have no text. */
const READABLE = 0.64;

/** All of a picture in the middle; but `kept` pixels at the right, where something may open, stay free. */
export function fit(rect: Rect, width: number, height: number, kept = 0): Camera {
  const wanted = Math.min(
    (width - kept - 2 * MARGIN) / Math.max(1, rect.width),
    (height - 2 * MARGIN) / Math.max(1, rect.height),
  );
  const zoom = clamp(wanted, LEAST_ZOOM, MOST_FIT);
  const middle = Math.min(width / 2, width - kept - MARGIN - (rect.width / 2) * zoom);
  return {
    x: rect.x + rect.width / 2 - middle / zoom,
    y: rect.y + rect.height / 2 - height / 2 / zoom,
    zoom,
  };
}

/** All of a picture if it can be read then; else as much as can be read, around what matters. */
export function fitReadable(
  whole: Rect,
  focus: Rect | null,
  width: number,
  height: number,
  kept = 0,
): Camera {
  const all = fit(whole, width, height, kept);
  if (all.zoom >= READABLE || !focus) return all;
  const [wide, high] = [(width - kept) / READABLE, height / READABLE];
  return {
    x: along(whole.x, whole.width, focus.x + focus.width / 2, wide),
    y: along(whole.y, whole.height, focus.y + Math.min(focus.height, high) / 2, high),
    zoom: READABLE,
  };
}

/** All of a picture if it can be read then; else something in it that can, with what is around it if there is
 * room for that. */
export function frame(
  whole: Rect,
  around: Rect,
  focus: Rect,
  width: number,
  height: number,
  kept = 0,
): Camera {
  const all = fit(whole, width, height, kept);
  if (all.zoom >= READABLE) return all;
  const near = fit(around, width, height, kept);
  if (near.zoom >= READABLE) return near;
  const [wide, high] = [(width - kept) / READABLE, height / READABLE];
  return {
    x: along(around.x, around.width, focus.x + Math.min(focus.width, wide) / 2, wide),
    y: along(around.y, around.height, focus.y + Math.min(focus.height, high) / 2, high),
    zoom: READABLE,
  };
}

/** Where a window on a line begins: in the middle of what is smaller, else around a point of it. */
function along(start: number, length: number, point: number, seen: number): number {
  const margin = MARGIN / READABLE;
  // Nothing is lost where no more than the empty edges are out of sight.
  if (length - 2 * SIZES.pad <= seen) return start + length / 2 - seen / 2;
  return clamp(point - seen / 2, start - margin, start + length + margin - seen);
}

/** Zooms so that the point under the pointer stays where it is. */
export function zoomAt(camera: Camera, x: number, y: number, factor: number): Camera {
  const zoom = clamp(camera.zoom * factor, LEAST_ZOOM, MOST_ZOOM);
  return {
    x: camera.x + x / camera.zoom - x / zoom,
    y: camera.y + y / camera.zoom - y / zoom,
    zoom,
  };
}

export function pan(camera: Camera, dx: number, dy: number): Camera {
  return { ...camera, x: camera.x - dx / camera.zoom, y: camera.y - dy / camera.zoom };
}

/** Moves no more than it must for something to be seen whole, or from its beginning. */
export function reveal(camera: Camera, rect: Rect, width: number, height: number): Camera {
  const margin = MARGIN / camera.zoom;
  const [wide, high] = [width / camera.zoom, height / camera.zoom];
  return {
    ...camera,
    x: revealAlong(camera.x, wide, rect.x - margin, rect.width + 2 * margin),
    y: revealAlong(camera.y, high, rect.y - margin, rect.height + 2 * margin),
  };
}

/** Whether anything of it is in the window. */
export function isInSight(camera: Camera, rect: Rect, width: number, height: number): boolean {
  return (
    rect.x + rect.width > camera.x &&
    rect.y + rect.height > camera.y &&
    rect.x < camera.x + width / camera.zoom &&
    rect.y < camera.y + height / camera.zoom
  );
}

/** Moves no further than it must for something not to lie under what covers the lower right corner of the window,
 * to the left or up, whichever is nearer. What has no room there stays: it is seen from its beginning. */
export function uncover(camera: Camera, rect: Rect, corner: Rect): Camera {
  const [x, y] = [(rect.x - camera.x) * camera.zoom, (rect.y - camera.y) * camera.zoom];
  const left = x + rect.width * camera.zoom + MARGIN - corner.x;
  const up = y + rect.height * camera.zoom + MARGIN - corner.y;
  if (left <= 0 || up <= 0) return camera;
  const isRoomAtLeft = x - MARGIN >= left;
  const isRoomAbove = y - MARGIN >= up;
  if (isRoomAbove && (up <= left || !isRoomAtLeft)) return pan(camera, 0, -up);
  return isRoomAtLeft ? pan(camera, -left, 0) : camera;
}

function revealAlong(at: number, size: number, start: number, length: number): number {
  if (start < at || length > size) return start;
  return start + length > at + size ? start + length - size : at;
}

export function between(from: Camera, to: Camera, share: number): Camera {
  const mix = (a: number, b: number) => a + (b - a) * share;
  return {
    x: mix(from.x, to.x),
    y: mix(from.y, to.y),
    // In equal factors: else the end of a long way would rush.
    zoom: from.zoom * (to.zoom / from.zoom) ** share,
  };
}

function clamp(value: number, low: number, high: number): number {
  return Math.max(low, Math.min(high, value));
}
