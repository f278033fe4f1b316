// The page of all labels: how frequent each is, and which come together.

import { askOnce } from "./api.js";
import { frequency, heat } from "./charts.js";
import { chance, count, el } from "./dom.js";
import { EMPTY, write } from "./state.js";

const MOST_ROWS = 200;
const labelLink = (name) => write({ ...EMPTY, page: "label", name });
const pairLink = (a, b) => write({ ...EMPTY, present: [a, b] });

export function dataPage(main, app) {
  app.title("Labels");
  const body = el("div", {}, el("h1", {}, "Labels"), el("p", { class: "quiet" }, "…"));
  main.append(body);
  let here = true;

  function table(labels) {
    const rows = el("tbody");
    const rest = el("p", { class: "quiet" });
    const filter = el("input", { type: "search", placeholder: "Filter labels", "aria-label": "Filter labels", oninput: draw });
    function draw() {
      const text = filter.value.trim().toLowerCase();
      const fitting = labels.filter(({ name }) => name.toLowerCase().includes(text));
      rows.replaceChildren(...fitting.slice(0, MOST_ROWS).map(({ name, positives, threshold }) => el("tr", {},
        el("td", {}, el("a", { href: labelLink(name), "data-link": true }, name)),
        el("td", { class: "number" }, positives === null ? "–" : count(positives)),
        el("td", { class: "number" }, threshold === null ? "never decided" : chance(threshold)))));
      rest.textContent = fitting.length > MOST_ROWS ? `and ${count(fitting.length - MOST_ROWS)} more: filter them` : "";
    }
    draw();
    return el("section", {}, el("h2", {}, "All labels"), filter,
      el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "Label"), el("th", { class: "number" }, "Positives"), el("th", { class: "number" }, "Threshold"))), rows), rest);
  }

  askOnce("data").then((page) => {
    if (!here) return;
    const tile = (text, value, key = null) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, key && el("i", { class: `key ${key}` }), text));
    body.replaceChildren(
      el("h1", {}, "Labels"),
      el("div", { class: "tiles" },
        tile("labels", count(page.labels.length)),
        page.n_items === null ? "" : tile("training items", count(page.n_items)),
        page.imbalance === null ? "" : tile("most ÷ fewest positives", `${page.imbalance.toLocaleString("en", { maximumFractionDigits: 1 })}`),
        tile("head: 100 or more positives", count(page.groups.head), "head"), tile("medium: 20 to 99", count(page.groups.medium), "medium"), tile("tail: below 20", count(page.groups.tail), "tail")),
      page.note ? el("p", { class: "notice" }, page.note) : "",
      el("section", {}, el("h2", {}, "Positives in training"), el("div", { class: "scroll" }, frequency(page.labels, labelLink))),
      page.together.length ? el("section", {}, el("h2", {}, "Which labels come together"),
        el("p", { class: "quiet" }, `p(row | column) among the ${page.together.length} most frequent labels. Choose a square to search for both.`),
        el("div", { class: "scroll" }, heat(page.together, page.conditional, page.both, pairLink))) : "",
      table(page.labels));
  }).catch((error) => body.replaceChildren(el("p", { class: "notice", role: "alert" }, error.message)));

  return { update() {}, leave() { here = false; } };
}
