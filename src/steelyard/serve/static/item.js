// One item: its picture, what the model says, what is true, and where its score came from.

import { ask } from "./api.js";
import { bar } from "./bars.js";
import { chance, count, el } from "./dom.js";
import { picture } from "./grid.js";
import { EMPTY, write } from "./state.js";

const labelLink = (name) => write({ ...EMPTY, page: "label", name });

/** The dialog of a page whose state may hold an item. `hits`, if any, are what arrow keys go through. */
export function itemDialog(app, { state, hits, terms, beforeEnd, close }) {
  let open = null;
  let asked = null;
  let opener = null;
  const dialog = el("dialog", { class: "item", "aria-label": "Item",
    oncancel: (event) => { event.preventDefault(); close(); },
    onclick: (event) => { if (event.target === dialog) close(); },
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step && !event.altKey && !event.ctrlKey && !event.metaKey) { event.preventDefault(); move(step); }
    } });
  document.body.append(dialog);

  function move(step) {
    const list = hits();
    const at = list.findIndex(({ id }) => id === open);
    const next = list[at + step];
    if (at >= 0 && at + step >= list.length - 2) beforeEnd?.();
    if (at >= 0 && next) app.go({ ...state(), item: next.id }, { replace: true });
  }

  /** The search in whose place more of the same is shown: its labels stay, of another page none. */
  const similar = () => (state().page === "search" ? { ...state(), item: null } : EMPTY);

  async function draw(id) {
    asked?.abort();
    asked = new AbortController();
    const list = hits();
    const at = list.findIndex((hit) => hit.id === id);
    const side = el("div", { class: "side" }, el("p", { class: "quiet" }, "…"));
    const view = el("figure", {}, picture(id, app.facts.has_images, "large"));
    const button = (text, step, name) => el("button", { type: "button", class: name, "aria-label": name, disabled: !list[at + step], onclick: () => move(step) }, text);
    dialog.replaceChildren(
      el("header", {}, el("h2", { title: id }, id),
        app.facts.has_embeddings && el("a", { class: "like", href: write({ ...similar(), like: id }), "data-link": true }, "More like this"),
        at >= 0 && button("‹", -1, "previous"), at >= 0 && button("›", 1, "next"),
        el("button", { type: "button", class: "close", "aria-label": "close", onclick: close }, "×")),
      el("div", { class: "both" }, view, side));
    dialog.querySelector(".close").focus();
    try {
      const facts = await ask("item", { id }, asked.signal);
      const hit = list[at];
      side.replaceChildren(
        ...(hit ? [el("p", { class: "sum" }, el("strong", {}, chance(hit.score)), " ", terms().length ? product(hit) : null,
          state().page === "search" && state().like !== null && " × how like it is")] : []),
        el("p", { class: "quiet" }, "Bars are probabilities, the tick is the threshold",
          facts.annotated ? `; ● and ○: annotated present and absent (${facts.annotated}).` : "."),
        el("div", { class: "bars all" }, facts.labels.map((one) => bar(one.label, one.probability, { ...one, link: labelLink(one.label) }))),
        facts.left_out > 0 ? el("p", { class: "quiet" }, `and ${count(facts.left_out)} less likely labels`) : "");
    } catch (error) {
      if (error.name !== "AbortError") side.replaceChildren(el("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  function product(hit) {
    return el("span", { class: "quiet" }, "from ", terms().map(({ label, present }, i) =>
      `${i ? ", " : ""}${present ? "" : "not "}${label} ${chance(present ? hit.probabilities[label] : 1 - hit.probabilities[label])}`).join(""));
  }

  return {
    update({ item }) {
      if (item === open) {
        if (item !== null) for (const [name, step] of [["previous", -1], ["next", 1]]) {
          const list = hits();
          const button = dialog.querySelector(`.${name}`);
          if (button) button.disabled = !list[list.findIndex((hit) => hit.id === item) + step];
        }
        return;
      }
      const was = open;
      open = item;
      if (item === null) {
        asked?.abort();
        dialog.close();
        const card = [...document.querySelectorAll("a.card")].find((one) => one.dataset.id === was);
        (card ?? opener)?.focus();
        return;
      }
      if (was === null) { opener = document.activeElement; dialog.showModal(); }
      draw(item);
    },
    leave() { asked?.abort(); dialog.remove(); },
  };
}
