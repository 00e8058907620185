import type { Evidence, Finding } from "../connectors/findings";
import { legible } from "./truncate";

/** From this score on a finding counts, as in the terminal's report. */
export const SURE = 0.5;

/** A finding with what it explains under it. */
export interface Told {
  finding: Finding;
  symptoms: Told[];
}

/** Causes in the order they came, their symptoms under them; what is muted or unsure only if asked. */
export function toldFindings(
  findings: readonly Finding[],
  muted: ReadonlySet<string>,
  isAll: boolean,
): Told[] {
  const shown = findings.filter(({ id, score }) => isAll || (score >= SURE && !muted.has(id)));
  const ids = new Set(shown.map(({ id }) => id));
  const reached = new Set<string>();
  const told = (finding: Finding): Told => {
    reached.add(finding.id);
    const symptoms = shown.filter((f) => f.because_of === finding.id && !reached.has(f.id));
    return { finding, symptoms: symptoms.map(told) };
  };
  const isUnder = ({ because_of }: Finding) => because_of !== null && ids.has(because_of);
  const roots = shown.filter((finding) => !isUnder(finding)).map(told);
  // Those that explain each other in a circle: the first of them stands for itself.
  for (const finding of shown) if (!reached.has(finding.id)) roots.push(told(finding));
  return roots;
}

/** Whether a finding is at a site: it is said of its module or what is around it, or the site speaks for it. */
export function isAbout(
  { where, evidence }: Finding,
  { name, module }: { name: string; module: string },
): boolean {
  const isInside = where !== "" && (module === where || module.startsWith(`${where}.`));
  return isInside || where === name || evidence.some(({ site }) => site === name);
}

const NAMES: Record<string, string> = { nonfinite: "not_finite", mode_misuse: "wrong_mode" };

/** `vanishing_gradient` as people say it. */
export function faultName(fault: string): string {
  const words = (NAMES[fault] ?? fault).replaceAll("_", " ").replace(/\blr\b/, "learning rate");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Where a finding is, as people say it. */
export function placeName(where: string): string {
  return where === "" ? "the model" : legible(where);
}

/** The colour that says how sure a finding is. */
export function scoreColour(score: number): string {
  return score >= 0.8 ? "--bad" : score >= SURE ? "--loss" : "--dim";
}

/** What to try, and the line of code that it is about, which the terminal prints behind it. */
export function adviceOf({ try_this, source }: Finding): { text: string; code: string } {
  const at = source === "" ? -1 : try_this.indexOf(source);
  if (at < 0) return { text: try_this, code: source };
  return {
    text: try_this
      .slice(0, at)
      .replace(/[:\s]+$/, "")
      .replace(/([^.])$/, "$1."),
    code: try_this.slice(at),
  };
}

const QUANTITY_NAMES: Record<string, string> = {
  grad: "gradient",
  grad_applied: "gradient applied",
};

/** What a piece of evidence shows, as people say it. */
export function evidenceName({ site, quantity, statistic, text }: Evidence): string {
  if (text !== "") return site === "" ? text : `${site}: ${text}`;
  if (site === "(loss)" && statistic === "mean") return "loss";
  const name = statistic.replaceAll("_", " ");
  const of = site === "" ? name : `${name} of ${site}`;
  return quantity === "value" ? of : `${of}, ${QUANTITY_NAMES[quantity] ?? quantity}`;
}
