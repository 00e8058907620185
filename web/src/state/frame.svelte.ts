import type { Role } from "../lib/roles";
import { Dependencies } from "./dependencies.svelte";
import type { OpenRun } from "./run.svelte";
import { selection } from "./selection.svelte";
import { SiteData } from "./site.svelte";

/** What stands around every view: the selected site and its data, the inspector, the search. */
export class Frame {
  palette = $state<"sites" | "runs" | "compare" | null>(null);
  isInspectorOpen = $state(true);
  isTimelineOpen = $state(true);
  /** The roles of the selected node, which only the graph knows. */
  nodeRoles = $state.raw<readonly Role[]>([]);
  /** The site that the graph showed last. One that the page was opened with is shown as its address says,
   * if it says which boxes are open. */
  shownInGraph: string | null | undefined = saysWhatIsOpen() ? selection.current.site : undefined;
  readonly siteData = new SiteData();
  readonly dependencies = new Dependencies();
  readonly site = $derived.by(() => this.run.siteByName.get(selection.current.site ?? "") ?? null);

  constructor(private readonly run: OpenRun) {}
}

function saysWhatIsOpen(): boolean {
  const { view, toggled, inside } = selection.current;
  return view === "graph" && (toggled.length > 0 || inside !== "");
}

/** How much wider the inspector is when it is open, as the workspace's style says. */
export function roomToOpen(): number {
  return Math.max(320, Math.min(400, window.innerWidth / 5)) - 28;
}
