import { getContext, setContext } from "svelte";
import type { Connector } from "../connectors/connector";
import type { OpenRun } from "./run.svelte";
import type { Runs } from "./runs.svelte";

interface Workspace {
  connector: Connector;
  runs: Runs;
}

const WORKSPACE = Symbol("workspace");
const RUN = Symbol("run");

export const setWorkspace = (workspace: Workspace) => setContext(WORKSPACE, workspace);
export const getWorkspace = () => getContext<Workspace>(WORKSPACE);
export const setRun = (run: OpenRun) => setContext(RUN, run);
export const getRun = () => getContext<OpenRun>(RUN);
