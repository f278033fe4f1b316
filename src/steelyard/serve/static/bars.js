// Probabilities as bars.

import { chance, el } from "./dom.js";

/** One bar: a name, a length, a number; `threshold` draws a tick, `truth` a mark, `absent` another colour. */
export function bar(name, probability, { threshold = null, truth = null, absent = false, link = null } = {}) {
  const decided = threshold !== null && probability >= threshold;
  const mark = truth === null ? null
    : el("span", { class: truth >= 0.5 ? "truth yes" : "truth no", title: truth >= 0.5 ? "annotated: present" : "annotated: absent" }, truth >= 0.5 ? "●" : "○");
  return el("div", { class: `bar${absent ? " absent" : ""}${decided ? " decided" : ""}` },
    el(link ? "a" : "span", { class: "name", href: link, "data-link": link ? true : null, title: name }, absent && el("i", {}, "−"), name),
    el("span", { class: "track", "aria-hidden": "true", vars: { "--p": probability } },
      el("i", {}), threshold !== null && el("b", { vars: { "--t": threshold } })),
    el("span", { class: "value" }, chance(probability)), mark);
}
