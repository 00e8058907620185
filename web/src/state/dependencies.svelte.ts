import type { Connector } from "../connectors/connector";
import type { GraphAnswer } from "../lib/graph/answer";
import { neighboursOf } from "../lib/graph/neighbours";
import { Resource } from "./resource.svelte";
import type { OpenRun } from "./run.svelte";

/** The dependency graph of the selected step, for all that ask: loaded once for each structure. */
export class Dependencies {
  readonly answer = new Resource<GraphAnswer>({ keep: true });
  readonly neighbours = $derived(this.answer.data && neighboursOf(this.answer.data));

  /** To be called from an effect. */
  follow(connector: Connector, run: OpenRun): void {
    const { graph, step } = run;
    if (!graph || step === null) return;
    this.answer.load(graph, graph, (signal) => connector.graph(run.id, step, signal));
  }
}
