import { legible } from "../lib/truncate";
import { runPath } from "./client";
import type { Connector } from "./connector";
import { readNumber } from "./json";

/** A statistic that speaks for a finding. */
export interface Evidence {
  /** A site's name, or empty where it is about the run. */
  site: string;
  quantity: string;
  statistic: string;
  steps: number[];
  values: number[];
  text: string;
}

/** What is wrong, where, since when, and why: see `docs/http.md`. */
export interface Finding {
  id: string;
  fault: string;
  where: string;
  step: number;
  score: number;
  why: string;
  try_this: string;
  evidence: Evidence[];
  source: string;
  because_of: string | null;
  explains: string[];
}

export interface Diagnosis {
  findings: Finding[];
  /** Why a fault was not checked. */
  skipped: Record<string, string>;
  /** The run has grown since. */
  is_behind: boolean;
}

export async function findings(
  from: Connector,
  id: string,
  signal?: AbortSignal,
): Promise<Diagnosis> {
  const told = await from.json<Diagnosis>(`${runPath(id)}/findings`, signal);
  for (const finding of told.findings) {
    // Sentences quote names; `where` and `site` are names, and stay what they are looked up by.
    finding.why = legible(finding.why);
    finding.try_this = legible(finding.try_this);
    finding.source = legible(finding.source);
    for (const each of finding.evidence) {
      each.text = legible(each.text);
      each.values = each.values.map((v) => readNumber(v) ?? Number.NaN);
    }
  }
  return told;
}
