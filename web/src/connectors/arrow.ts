/** Reads Arrow streams. A module of its own, so that it is loaded, and bundled, only where it is needed. */
export { tableFromIPC } from "@uwdata/flechette";
