// The page of one label: can its probabilities be trusted, which threshold, and where it goes wrong.

import { ask } from "./api.js";
import { precisionRecall, reliability } from "./charts.js";
import { chance, count, el, percent, plural } from "./dom.js";
import { picture } from "./grid.js";
import { itemDialog } from "./item.js";
import { EMPTY, marked, write } from "./state.js";

export function labelPage(main, app, first) {
  let state = first;
  let shown = [];
  const asked = new AbortController();
  const dialog = itemDialog(app, {
    state: () => state, hits: () => shown, terms: () => [], close: () => app.close({ ...state, item: null }),
  });
  app.title(first.name);
  const body = el("div", {}, el("p", { class: "quiet" }, "…"));
  main.append(body);

  const tile = (text, value, hint) => el("div", { class: "tile", title: hint ?? null }, el("b", {}, value), el("span", {}, text));

  function strip(title, hint, items) {
    if (!items.length) return null;
    return el("section", { class: "strip" }, el("h2", {}, title), el("p", { class: "quiet" }, hint),
      el("div", { class: "row" }, items.map(({ id, probability }) => el("a", {
        class: "card small", href: write({ ...state, item: id }), "data-id": id, "aria-label": `${id}, probability ${chance(probability)}`,
        onclick: (event) => {
          if (event.metaKey || event.ctrlKey || event.shiftKey) return;
          event.preventDefault();
          shown = items.map((one) => ({ id: one.id, score: one.probability, probabilities: {} }));
          app.go({ ...state, item: id });
        },
      }, el("span", { class: "frame" }, picture(id, app.facts.has_images), el("span", { class: "score" }, chance(probability)))))));
  }

  function curves(page) {
    if (!page.curve) return null;
    const { chart, mark } = precisionRecall(page.curve);
    const said = el("p", { class: "said", role: "status" });
    const last = page.curve.threshold.length - 1;
    const nearest = (t) => { let i = last; while (i > 0 && page.curve.threshold[i - 1] < t) i -= 1; return i; };
    const slider = el("input", { id: "threshold", type: "range", min: 0, max: 1, step: 0.001, value: page.threshold ?? 1, "aria-label": "Threshold", oninput: () => at(Number(slider.value)) });
    function at(t) {
      // items at or above t: those of the last point of the curve that is not below it
      let i = -1;
      while (i < last && page.curve.threshold[i + 1] >= t) i += 1;
      if (i < 0) { mark(1, 0); said.textContent = `At ${chance(t)} no item is decided to have it.`; return; }
      const precision = page.curve.precision[i], recall = page.curve.recall[i];
      mark(precision, recall);
      const f1 = precision + recall ? (2 * precision * recall) / (precision + recall) : 0;
      said.textContent = `At ${chance(t)}: ${plural(page.curve.decided[i], "item")}, precision ${percent(precision)}, recall ${percent(recall)}, F1 ${percent(f1)}.`;
    }
    const chosen = page.threshold === null ? null : el("button", { type: "button", onclick: () => { slider.value = page.threshold; at(page.threshold); } }, `Chosen: ${chance(page.threshold)}`);
    at(page.threshold ?? page.curve.threshold[nearest(1)]);
    return el("section", {}, el("h2", {}, "Precision and recall"), chart, el("div", { class: "threshold" }, el("label", { for: "threshold" }, "Threshold"), slider, chosen), said);
  }

  function draw(page) {
    const search = write(marked({ ...EMPTY }, page.name, "present"));
    body.replaceChildren(
      el("p", { class: "crumbs" }, el("a", { href: "/data", "data-link": true }, "Labels"), " ›"),
      el("h1", {}, page.name),
      el("p", {}, el("a", { class: "button", href: search, "data-link": true }, "Find items")),
      el("div", { class: "tiles" },
        tile("positives in training", page.positives === null ? "–" : count(page.positives), page.known === null ? null : `known for ${count(page.known)} items`),
        tile("threshold", page.threshold === null ? "never decided" : chance(page.threshold)),
        tile("average precision", percent(page.average_precision)),
        tile("calibration error (ECE)", percent(page.calibration_error)),
        tile(page.part ? `present of ${count(page.n_items)} ${page.part} items` : "items with known labels", count(page.n_present))),
      page.note ? el("p", { class: "notice" }, page.note) : "",
      el("div", { class: "pair" },
        page.bins ? el("section", {}, el("h2", {}, "Reliability"), reliability(page.bins), el("p", { class: "quiet" }, "On the dashed line, predicted probability and observed frequency are equal. Below: items per bin, on a log scale.")) : "",
        curves(page) ?? ""),
      strip("Present, most probable", "Annotated present, with the highest probability.", page.right) ?? "",
      strip("Absent, most probable", "Annotated absent, with the highest probability: errors of the model or of the annotation.", page.wrong) ?? "",
      strip("Present, least probable", "Annotated present, with the lowest probability.", page.missed) ?? "",
      page.neighbours.length ? el("section", {}, el("h2", {}, "Seen together with"), el("p", { class: "cloud" }, page.neighbours.map(({ label, share }) =>
        el("a", { class: "tag", href: write({ ...EMPTY, page: "label", name: label }), "data-link": true }, label, el("span", { class: "quiet" }, ` ${percent(share)}`))))) : "");
  }

  ask("label", { name: first.name ?? "" }, asked.signal).then(draw).catch((error) => {
    if (error.name !== "AbortError") body.replaceChildren(el("p", { class: "notice", role: "alert" }, error.message));
  });

  return {
    update(next) { state = next; dialog.update(next); },
    leave() { asked.abort(); dialog.leave(); },
  };
}
