import type { Connector, Summary } from "../connectors/connector";

/** The list of runs, as it changes. */
export class Runs {
  list = $state.raw<Summary[] | null>(null);
  isConnected = $state(true);
  /** When the list arrived, in seconds: ages are as of then. */
  receivedAt = $state(0);

  watch(connector: Connector): () => void {
    return connector.watchRuns({
      onChange: (list) => {
        this.list = list;
        this.receivedAt = Date.now() / 1000;
      },
      onConnection: (isConnected) => {
        this.isConnected = isConnected;
      },
    });
  }

  find(id: string): Summary | undefined {
    return this.list?.find((run) => run.id === id);
  }
}
