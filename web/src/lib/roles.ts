export interface Role {
  name: string;
  label: string;
}

interface Placed {
  name: string;
  tensor_class: string;
  module: string;
  place: string;
  call: number;
}

const OWNED = ["parameter", "buffer", "optimizer"];
const KINDS = ["input", "target", "loss", "hidden"];

/** Whose colour a tensor has: its class's, or that of what the user says it is. */
export function colourOf(site: { tensor_class: string; kind: string }): string {
  return site.tensor_class === "tensor" && KINDS.includes(site.kind)
    ? site.kind
    : site.tensor_class;
}

/** The tensors of a module's call: its inputs, its outputs, and what it owns. A tensor that the user
 * named has those of its node, which only the graph knows. */
export function rolesOf<T extends Placed>(
  site: T,
  sites: readonly T[],
  ofNode: readonly Role[],
): Role[] {
  if (site.tensor_class === "tensor") return [...ofNode];
  const isOwned = (each: Placed) => OWNED.includes(each.tensor_class);
  const call = isOwned(site) ? 1 : site.call;
  return sites
    .filter(
      (each) =>
        each.tensor_class !== "tensor" &&
        each.module === site.module &&
        (isOwned(each) || each.call === call),
    )
    .map(({ name, place }) => ({ name, label: place }));
}
