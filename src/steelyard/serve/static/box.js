// The search box: chips of present and absent labels, a field, and labels offered as one types.

import { ask } from "./api.js";
import { count, el } from "./dom.js";
import { marked } from "./state.js";

const OPERATORS = /[&|()<>="]|(^|\s)(AND|OR|NOT)(\s|$)/;
const NEGATION = /^\s*(?:[-~!]|not\s+)\s*/i;

/** A label as a query writes it. */
export const quoted = (name) => (/^[\p{L}\p{N}_]+$/u.test(name) && !/^(and|or|not)$/i.test(name) ? name : `"${name.replace(/["\\]/g, "\\$&")}"`);

export function searchBox(app, now) {
  let offered = [];
  let active = -1;
  let waiting = null;
  let asked = null;
  let text = ""; // of the state that is shown

  const chips = el("span", { class: "chips" });
  const list = el("ul", { id: "offers", role: "listbox", "aria-label": "Labels", hidden: true });
  const field = el("input", {
    id: "query", type: "text", role: "combobox", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    enterkeyhint: "search", maxlength: 2000, "aria-label": "Labels to search for", "aria-expanded": "false",
    "aria-controls": "offers", "aria-autocomplete": "list",
    oninput: () => {
      active = -1; // what is offered is of the text before: Enter must not take it
      draw();
      clearTimeout(waiting);
      waiting = setTimeout(offer, 60);
    },
    onkeydown: pressed,
    onfocus: () => { if (field.value === "") offer(); },
  });
  const form = el("form", { class: "box", role: "search", onsubmit: (event) => { event.preventDefault(); submit(); } },
    el("span", { class: "glass", "aria-hidden": "true" }, "⌕"), chips, field,
    el("button", { type: "submit", class: "go" }, "Search"), list);
  form.addEventListener("focusout", (event) => { if (!form.contains(event.relatedTarget)) close(); });
  form.addEventListener("click", (event) => { if (event.target === form || event.target === chips) field.focus(); });

  function chip(label, present) {
    const turn = () => app.go(marked(now(), label, present ? "absent" : "present"));
    return el("span", { class: present ? "chip present" : "chip absent" },
      el("button", { type: "button", class: "turn", onclick: turn, title: present ? "Present: click for absent" : "Absent: click for present",
        "aria-label": `${label}, ${present ? "present: switch to absent" : "absent: switch to present"}` },
        el("span", { class: "sign", "aria-hidden": "true" }, present ? "+" : "−"), el("span", { class: "name" }, label)),
      el("button", { type: "button", class: "remove", "aria-label": `Remove ${label}`,
        onclick: () => { app.go(marked(now(), label, "none")); field.focus(); } }, "×"));
  }

  async function offer() {
    asked?.abort();
    asked = new AbortController();
    const { prefix } = split(field.value);
    try {
      const answer = await ask("labels", { text: prefix, k: 8 }, asked.signal);
      const state = now();
      offered = answer.labels.filter(({ name }) => OPERATORS.test(field.value) || !(state.present.includes(name) || state.absent.includes(name)));
      active = field.value.trim() !== "" && offered.length > 0 && !OPERATORS.test(field.value) ? 0 : -1;
      if (document.activeElement === field) draw();
    } catch (error) {
      if (error.name !== "AbortError") close();
    }
  }

  function draw() {
    const negative = NEGATION.test(field.value) && !OPERATORS.test(field.value);
    list.replaceChildren(...offered.map(({ name, positives }, i) =>
      el("li", { role: "option", id: `offer-${i}`, "aria-selected": String(i === active), onmousedown: (event) => { event.preventDefault(); take(i, negative); } },
        el("span", { class: "sign", "aria-hidden": "true" }, negative ? "−" : "+"),
        el("span", { class: "name" }, name),
        el("span", { class: "quiet" }, positives === null ? "" : count(positives)),
        !OPERATORS.test(field.value) && el("button", { type: "button", tabindex: -1, class: "not", "aria-label": `not ${name}`,
          onmousedown: (event) => { event.preventDefault(); event.stopPropagation(); take(i, true); } }, "not"))));
    const open = offered.length > 0;
    list.hidden = !open;
    field.setAttribute("aria-expanded", String(open));
    if (open && active >= 0) field.setAttribute("aria-activedescendant", `offer-${active}`);
    else field.removeAttribute("aria-activedescendant");
  }

  function close() {
    asked?.abort();
    clearTimeout(waiting);
    offered = [];
    active = -1;
    draw();
  }

  function take(i, negative) {
    const { name } = offered[i];
    if (OPERATORS.test(field.value)) {
      const { before } = split(field.value);
      field.value = `${before}${quoted(name)} `;
      close();
    } else {
      field.value = "";
      close();
      app.go({ ...marked(now(), name, negative ? "absent" : "present"), text: now().text });
    }
    field.focus();
  }

  function submit() {
    const typed = field.value.trim();
    close();
    if (typed !== now().text) app.go({ ...now(), text: typed, item: null });
  }

  function pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      if (list.hidden) offer();
      else { active = (active + step + offered.length + (active < 0 && step < 0 ? 1 : 0)) % offered.length; draw(); }
    } else if (event.key === "Enter" && active >= 0 && !list.hidden) {
      event.preventDefault();
      take(active, event.shiftKey || NEGATION.test(field.value));
    } else if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      close();
    } else if (event.key === "Backspace" && field.value === "") {
      const state = now();
      const last = state.absent.at(-1) ?? state.present.at(-1);
      if (last !== undefined) { event.preventDefault(); app.go(marked(state, last, "none")); }
    }
  }

  return {
    node: form,
    focus: () => field.focus(),
    update(state) {
      chips.replaceChildren(...state.present.map((label) => chip(label, true)), ...state.absent.map((label) => chip(label, false)));
      const typed = field.value.trim(); // what was typed since is kept, unless another text takes its place
      if (typed !== state.text && (typed === text || state.text !== "")) field.value = state.text;
      text = state.text;
      field.placeholder = state.present.length + state.absent.length ? "" : "labels that should be there, -labels that should not";
    },
  };
}

/** What of a text is to be completed: all of a plain one, the last word of an expression. */
function split(text) {
  if (!OPERATORS.test(text)) return { before: "", prefix: text.replace(NEGATION, "") };
  const prefix = /[^\s&|()<>=~!"-]*$/.exec(text)[0];
  return { before: text.slice(0, text.length - prefix.length), prefix };
}
