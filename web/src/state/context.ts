import { getContext, setContext } from "svelte";
import type { Connector } from "../connectors/connector";
import type { Frame } from "./frame.svelte";
import type { OpenRun } from "./run.svelte";
import type { Runs } from "./runs.svelte";

interface Workspace {
  connector: Connector;
  runs: Runs;
}

const WORKSPACE = Symbol("workspace");
const RUN = Symbol("run");
const FRAME = Symbol("frame");

export const setWorkspace = (workspace: Workspace) => setContext(WORKSPACE, workspace);
export const getWorkspace = () => getContext<Workspace>(WORKSPACE);
export const setRun = (run: OpenRun) => setContext(RUN, run);
export const getRun = () => getContext<OpenRun>(RUN);
export const setFrame = (frame: Frame) => setContext(FRAME, frame);
export const getFrame = () => getContext<Frame>(FRAME);
