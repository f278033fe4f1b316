// Where one is, and the page that belongs there.

import { ask } from "./api.js";
import { el, plural } from "./dom.js";
import { read, write } from "./state.js";
import { searchPage } from "./search.js";
import { labelPage } from "./label.js";
import { dataPage } from "./data.js";
import { keepToken, reviewPage } from "./review.js";

const main = document.getElementById("main");
const PAGES = { search: searchPage, label: labelPage, data: dataPage, review: reviewPage };
const LOOK_AGAIN = 5000; // ms
let shown = null; // { page, update(state), leave() }
let depth = history.state?.depth ?? 0;

export const app = {
  facts: null,
  /** Go to a state: a new entry of the history, or with `replace` the present one changed. */
  go(state, { replace = false } = {}) {
    const address = write(state);
    if (replace) history.replaceState({ depth }, "", address);
    else if (address !== location.pathname + location.search) history.pushState({ depth: ++depth }, "", address);
    show(state);
  },
  /** Close what was opened from here: back, or where it was opened by its address, onwards. */
  close(state) {
    if (depth > 0) history.back();
    else app.go(state, { replace: true });
  },
  title(text) { document.title = text ? `${text} · Steelyard` : "Steelyard"; },
};

function show(state) {
  for (const link of document.querySelectorAll("[data-page]")) {
    if (link.dataset.page === (state.page === "label" ? "data" : state.page)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const key = state.page === "label" ? `label ${state.name}` : state.page;
  if (shown?.key !== key) {
    shown?.leave?.();
    main.replaceChildren();
    shown = { key, ...PAGES[state.page](main, app, state) };
    scrollTo(0, 0);
  }
  shown.update(state);
}

addEventListener("popstate", (event) => {
  depth = event.state?.depth ?? 0;
  show(read(location));
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-link]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  app.go(read(new URL(link.href)));
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "range") return;
  if (!app.facts || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  if (!document.getElementById("query")) app.go(read(new URL("/", location)));
  document.getElementById("query").focus();
});

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* storage may be forbidden */ }
});

keepToken();
try {
  app.facts = await ask("run");
  document.getElementById("review").hidden = !app.facts.review;
  document.getElementById("run").textContent = app.facts.name;
  document.getElementById("facts").textContent =
    `${plural(app.facts.n_items, "item")}, ${plural(app.facts.n_labels, "label")} · Steelyard ${app.facts.version}`;
  history.replaceState({ depth }, "");
  show(read(location));
  setInterval(() => { if (!document.hidden) ask("run").catch(() => {}); }, LOOK_AGAIN); // a new index is noticed by it
} catch (error) {
  main.replaceChildren(el("p", { class: "notice", role: "alert" }, error.message));
}
