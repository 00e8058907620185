import { OverHttp } from "./connectors/overHttp";
import { start } from "./start";

start(new OverHttp());
