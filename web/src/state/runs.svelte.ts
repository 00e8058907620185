import type { Connector, Summary } from "../connectors/connector";

/** The list of runs, as it changes. */
export class Runs {
  list = $state.raw<Summary[] | null>(null);
  problems = $state.raw<string[]>([]);
  isConnected = $state(true);
  /** When the list arrived, in seconds: ages are as of then. */
  receivedAt = $state(0);

  watch(connector: Connector): () => void {
    let known = -1;
    return connector.watchRuns({
      onChange: (list) => {
        // The events tell nothing of runs that cannot be read.
        if (list.length !== known) void this.loadProblems(connector);
        known = list.length;
        this.list = list;
        this.receivedAt = Date.now() / 1000;
      },
      onConnection: (isConnected) => {
        this.isConnected = isConnected;
      },
    });
  }

  private async loadProblems(connector: Connector): Promise<void> {
    try {
      this.problems = (await connector.runs()).problems;
    } catch {
      // The list itself says when the connection is lost.
    }
  }

  find(id: string): Summary | undefined {
    return this.list?.find((run) => run.id === id);
  }
}
