// The page that finds items.

import { ask, askOnce } from "./api.js";
import { quoted, searchBox } from "./box.js";
import { chance, count, el } from "./dom.js";
import { arrows, card, picture, replaceCards } from "./grid.js";
import { itemDialog } from "./item.js";
import { EMPTY, isEmpty, marked, question, write } from "./state.js";

const AT_ONCE = 40;
const SHOWN_AT_START = 12;

export function searchPage(main, app, first) {
  let state = first;
  let asked = null;
  let drawn = null; // the question whose answer is shown
  let result = { hits: [], terms: [], more: false };
  let started = null; // what is shown where nothing is asked for

  const box = searchBox(app, () => state);
  const status = el("p", { class: "status", role: "status" });
  const limits = el("div", { class: "limits" });
  const grid = el("div", { class: "grid", onkeydown: (event) => arrows(event, grid) });
  const more = el("button", { type: "button", class: "more", hidden: true, onclick: () => fetchMore() }, "More");
  const start = el("section", { class: "start" });
  main.append(el("h1", { class: "unseen" }, "Search"), box.node, limits, status, start, grid, more);

  const dialog = itemDialog(app, {
    state: () => state,
    hits: () => result.hits,
    terms: () => result.terms,
    beforeEnd: () => { if (result.more) fetchMore(); },
    close: () => app.close({ ...state, item: null }),
  });

  function drawLimits() {
    const rows = [...state.present.map((label) => [label, true]), ...state.absent.map((label) => [label, false])];
    if (limits.dataset.rows === JSON.stringify(rows)) {
      for (const slider of limits.querySelectorAll("input")) {
        const value = state.limits[slider.dataset.label] ?? (slider.dataset.present === "true" ? 0 : 1);
        if (Number(slider.value) !== value) { slider.value = value; slider.dispatchEvent(new Event("input")); }
      }
      return;
    }
    limits.dataset.rows = JSON.stringify(rows);
    limits.replaceChildren(...rows.map(([label, present]) => limit(label, present)));
  }

  function limit(label, present) {
    const rest = present ? 0 : 1;
    const value = state.limits[label] ?? rest;
    const shown = el("output", {}, value.toFixed(2));
    const slider = el("input", {
      type: "range", min: 0, max: 1, step: 0.01, value, "data-label": label, "data-present": String(present),
      "aria-label": `${label}: ${present ? "at least" : "at most"}`,
      oninput: () => { shown.textContent = Number(slider.value).toFixed(2); },
      onchange: () => {
        const kept = { ...state.limits };
        if (Number(slider.value) === rest) delete kept[label];
        else kept[label] = Number(slider.value);
        app.go({ ...state, limits: kept, item: null });
      },
    });
    return el("label", { class: present ? "limit" : "limit absent" },
      el("span", { class: "name", title: label }, label), el("span", { class: "quiet" }, present ? "at least" : "at most"), slider, shown);
  }

  async function drawStart() {
    const { labels, total } = await askOnce("labels", { k: 60 });
    const linkTo = (name) => write(marked({ ...EMPTY }, name, "present"));
    const typed = (text) => el("code", {}, el("a", { href: write({ ...EMPTY, text }), "data-link": true }, text));
    const [a, b, c] = labels.map(({ name }) => quoted(name));
    start.replaceChildren(
      el("h2", {}, app.facts.has_images ? "What should be in the picture?" : "Which labels should an item have?"),
      el("p", {}, "Choose labels, or type",
        c === undefined ? "." : [" ", typed(`${a} ${b} -${c}`), ", ", typed(`(${a} | ${b}) & ~${c}`), ", ", typed(`${a} > 0.8`), "."]),
      el("p", { class: "cloud" }, labels.map(({ name, positives }) => el("a", { class: "tag", href: linkTo(name), "data-link": true },
        name, positives !== null && el("span", { class: "quiet", title: "positives in training" }, ` ${count(positives)}`)))),
      total > labels.length ? el("p", {}, el("a", { href: "/data", "data-link": true }, `All ${count(total)} labels`)) : "");
    if (app.facts.has_images) await drawLikeliest(labels.slice(0, SHOWN_AT_START), linkTo);
  }

  /** For some labels, the item that has them most probably. */
  async function drawLikeliest(labels, linkOf) {
    const answers = await Promise.all(labels.map(({ name }) => askOnce("search", { present: [name], k: 1 })));
    const cards = labels.flatMap(({ name }, i) => answers[i].hits.map(({ id, score }) => el("a", { class: "card", href: linkOf(name), "data-link": true },
      el("span", { class: "frame" }, picture(id, true)),
      el("span", { class: "caption" }, el("b", { title: name }, name), el("span", { class: "quiet" }, chance(score))))));
    start.append(el("h2", {}, "The most probable item of each label"), el("div", { class: "row" }, cards));
  }

  function tell(error) {
    grid.replaceChildren();
    more.hidden = true;
    status.replaceChildren();
    status.append(el("span", { class: "problem", role: "alert" }, error.message,
      error.at !== null && error.query !== null && el("span", { class: "caret" }, `${error.query}\n${" ".repeat(error.at)}^`)));
  }

  async function search() {
    asked?.abort();
    asked = new AbortController();
    grid.setAttribute("aria-busy", "true");
    try {
      const answer = await ask("search", { ...question(state), k: AT_ONCE }, asked.signal);
      if (answer.plain && state.text) { // a text that says no more than chips do becomes chips
        let turned = { ...state, text: "" };
        for (const { label, present } of answer.terms) {
          if (!turned.present.includes(label) && !turned.absent.includes(label)) turned = { ...marked(turned, label, present ? "present" : "absent"), item: state.item, limits: turned.limits };
        }
        drawn = JSON.stringify(question(turned));
        result = answer;
        app.go(turned, { replace: true });
      } else {
        result = answer;
      }
      replaceCards(grid, cards(result.hits));
      more.hidden = !result.more;
      const asItIs = result.query.length > 120 ? `${result.query.slice(0, 120)}…` : result.query;
      const one = result.hits.length ? (asItIs ? "The most probable" : "The closest") : "None";
      status.replaceChildren(
        `${one} of ${count(result.n_items)} items${result.hits.length ? "" : " is left"}${asItIs ? " for " : ""}`,
        asItIs && el("code", {}, asItIs),
        state.like === null ? "" : el("span", { class: "like" }, asItIs ? ", like " : " to ", el("code", {}, state.like), " ",
          el("a", { href: write({ ...state, like: null, item: null }), "data-link": true, "aria-label": `not like ${state.like}` }, "×")));
    } catch (error) {
      if (error.name === "AbortError") return;
      result = { hits: [], terms: [], more: false };
      tell(error);
    }
    grid.removeAttribute("aria-busy");
    dialog.update(state);
  }

  async function fetchMore() {
    more.disabled = true;
    const before = drawn;
    try {
      const answer = await ask("search", { ...question(state), k: AT_ONCE, offset: result.hits.length });
      if (before !== drawn) return;
      const seen = new Set(result.hits.map(({ id }) => id)); // the index may have changed in between
      const fresh = answer.hits.filter(({ id }) => !seen.has(id));
      result = { ...result, hits: [...result.hits, ...fresh], more: answer.more && fresh.length > 0 };
      grid.append(...cards(fresh));
      more.hidden = !result.more;
      dialog.update(state);
    } catch (error) {
      if (error.name !== "AbortError") status.append(el("span", { class: "problem", role: "alert" }, error.message));
    } finally {
      more.disabled = false;
    }
  }

  const cards = (hits) => hits.map((hit) =>
    card(hit, result.terms, write({ ...state, item: hit.id }), (id) => app.go({ ...state, item: id }), app.facts.has_images));

  return {
    update(next) {
      state = next;
      box.update(state);
      drawLimits();
      app.title([...state.present, ...state.absent.map((label) => `not ${label}`), state.text, state.like !== null && `like ${state.like}`].filter(Boolean).join(", "));
      if (isEmpty(state)) {
        asked?.abort();
        drawn = null;
        result = { hits: [], terms: [], more: false };
        grid.replaceChildren();
        grid.removeAttribute("aria-busy");
        status.replaceChildren();
        more.hidden = true;
        start.hidden = false;
        started ??= drawStart().catch((error) => { started = null; status.replaceChildren(error.message); });
        dialog.update(state);
        return;
      }
      start.hidden = true;
      const asking = JSON.stringify(question(state));
      if (asking !== drawn) { drawn = asking; search(); }
      else dialog.update(state);
    },
    leave() { asked?.abort(); dialog.leave(); },
  };
}

