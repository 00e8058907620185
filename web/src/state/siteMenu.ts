import { copyItem, type MenuItem } from "./menu.svelte";
import { selection } from "./selection.svelte";

/** What can be done with a site, wherever it is seen. */
export function siteItems(site: string): MenuItem[] {
  const { pins, view } = selection.current;
  const show = (label: string, to: typeof view): MenuItem[] =>
    view === to ? [] : [{ label, act: () => selection.change({ site, view: to }) }];
  return [
    ...show("Open tensor", "tensor"),
    ...show("Show in the graph", "graph"),
    ...show("Show in the heatmap", "heatmap"),
    {
      label: pins.includes(site) ? "Unpin" : "Pin",
      act: () => selection.pin(site),
      isApart: true,
    },
    copyItem("Copy name", site),
    copyItem("Copy link", linkTo(site)),
  ];
}

function linkTo(site: string): string {
  const address = new URL(location.href);
  address.hash = selection.address({ site });
  return address.href;
}
