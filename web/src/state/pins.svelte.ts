import type { Connector, Site } from "../connectors/connector";
import type { OpenRun } from "./run.svelte";
import { QuantityData, quantitiesOf } from "./site.svelte";

export interface PinnedTensor {
  site: Site;
  data: QuantityData;
}

/** The data of the pinned tensors: one quantity of each. */
export class PinnedData {
  list = $state.raw<readonly PinnedTensor[]>([]);

  /** To be called from an effect: follows the pins, the quantity and the run's growth. */
  follow(connector: Connector, run: OpenRun, sites: readonly Site[], quantity: string): void {
    const known = new Map(this.list.map((pinned) => [keyOf(pinned), pinned]));
    const next = sites.map((site) => {
      const chosen = quantitiesOf(site, run.quantities).includes(quantity) ? quantity : "value";
      return known.get(`${site.site}/${chosen}`) ?? { site, data: new QuantityData(chosen, run) };
    });
    const kept = new Set(next);
    for (const pinned of this.list) if (!kept.has(pinned)) pinned.data.stop();
    if (next.length !== this.list.length || next.some((each, i) => each !== this.list[i])) {
      this.list = next;
    }
    for (const { site, data } of next) data.load(connector, site);
  }

  clear(): void {
    for (const { data } of this.list) data.stop();
    this.list = [];
  }
}

function keyOf({ site, data }: PinnedTensor): string {
  return `${site.site}/${data.quantity}`;
}
