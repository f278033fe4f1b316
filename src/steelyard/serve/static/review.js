// Questions about labels, one at a time: does this item have this label?

import { ask, tell } from "./api.js";
import { chance, count, el } from "./dom.js";

const AHEAD = 10; // questions that are fetched at once
const KEYS = { y: "y", n: "n", "?": "?", s: "skip", ArrowRight: "skip", u: "undo", Backspace: "undo", ArrowLeft: "undo" };
const GIVEN = new Map([[1, "present"], [0, "absent"], [null, "not known"]]);

/** Take the token out of the address: it stays in this tab and is in no link, history or screenshot. */
export function keepToken() {
  const match = /^#token=([\w-]{20,100})$/.exec(location.hash);
  if (!match) return;
  try { sessionStorage.setItem("token", match[1]); } catch { /* storage may be forbidden: then nothing can be answered */ }
  history.replaceState(history.state, "", location.pathname + location.search);
}

function remembered(storage, name) {
  try { return storage.getItem(name) ?? ""; } catch { return ""; }
}

const pictureOf = (id) => `/api/review/picture?${new URLSearchParams({ id, size: "large" })}`;

export function reviewPage(main, app) {
  const token = remembered(sessionStorage, "token");
  let queue = []; // questions to come, the first is shown
  let past = []; // what was answered or skipped here: { question, answer }
  let next = 0; // the place in the queue from which more is fetched
  let progress = null;
  let busy = false;
  let gone = false;

  const name = el("input", { type: "text", maxlength: 80, autocomplete: "name", "aria-label": "Your name", placeholder: "your name",
    onchange: () => { try { localStorage.setItem("who", name.value); } catch { /* storage may be forbidden */ } } });
  name.value = remembered(localStorage, "who");
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Answered" });
  const done = el("span", { class: "done", role: "status" });
  const view = el("figure", { class: "asked" });
  const side = el("div", { class: "question" });
  const problem = el("p", { class: "problem", role: "alert" });
  const button = (answer, text, key, kind) => el("button", { type: "button", class: `answer ${kind}`, "data-answer": answer, onclick: () => act(answer) },
    text, el("kbd", {}, key));
  const buttons = el("div", { class: "answers" },
    button("y", "Yes", "y", "yes"), button("n", "No", "n", "no"), button("?", "Can’t tell", "?", "unsure"),
    button("skip", "Skip", "s", "other"), button("undo", "Undo", "u", "other"));
  const both = el("div", { class: "both" }, view, el("div", { class: "side" }, side, buttons, problem));
  main.append(el("div", { class: "review" },
    el("div", { class: "along" }, bar, done, el("label", { class: "who" }, "Answers by ", name)),
    both));
  app.title("Review");

  function draw() {
    const question = queue[0];
    if (progress) {
      bar.max = progress.total;
      bar.value = progress.answered;
      done.textContent = `${count(progress.answered)} of ${count(progress.total)} answered`;
      if (name.placeholder !== progress.who && progress.who) name.placeholder = progress.who;
    }
    for (const one of buttons.children) {
      one.disabled = busy || !token || (one.dataset.answer === "undo" ? past.length === 0 : !question);
    }
    buttons.hidden = !question && past.length === 0;
    view.hidden = !question;
    both.classList.toggle("ended", !question);
    if (question) put(question);
    else if (progress) finished();
  }

  function put(question) {
    if (side.dataset.place === String(question.place)) return;
    side.dataset.place = question.place;
    const image = el("img", { src: pictureOf(question.id), alt: question.id, decoding: "async" });
    image.addEventListener("error", () => image.replaceWith(el("span", { class: "nothing" }, question.id)), { once: true });
    view.replaceChildren(image);
    side.replaceChildren(
      el("h1", {}, "Is ", el("em", {}, question.label), " present?"),
      el("dl", {},
        el("dt", {}, "Item"), el("dd", {}, question.id),
        el("dt", {}, "Label given"), el("dd", {}, GIVEN.get(question.given)),
        question.probability === null ? null : [el("dt", {}, "Probability"), el("dd", {}, chance(question.probability))],
        question.why ? [el("dt", {}, "Why asked"), el("dd", {}, question.why)] : null));
    if (queue[1]) new Image().src = pictureOf(queue[1].id);
  }

  function finished() {
    const skipped = past.filter(({ answer }) => answer === "skip").length;
    delete side.dataset.place;
    view.replaceChildren();
    const all = progress.answered >= progress.total;
    side.replaceChildren(
      el("h1", {}, all ? "All questions are answered." : "This is the end of the queue."),
      ...(all ? [] : [el("p", {}, `${count(progress.total - progress.answered)} have no answer${skipped ? ", some were skipped" : ""}. `,
        el("button", { type: "button", class: "button", onclick: () => again() }, "Go through them"))]),
      el("p", { class: "quiet" }, "Train with the answers: ", el("code", {}, `steelyard train --corrections ${progress.file} …`)));
  }

  async function fetchMore() {
    const answer = await ask("review", { start: next, k: AHEAD });
    if (gone) return;
    progress = answer;
    const known = new Set(queue.map(({ place }) => place));
    queue.push(...answer.questions.filter(({ place }) => !known.has(place)));
    if (answer.questions.length) next = answer.questions.at(-1).place + 1;
  }

  async function again() {
    next = 0;
    queue = [];
    await guarded(fetchMore);
  }

  /** Do something that may be refused; what is shown is drawn before and after. */
  async function guarded(task) {
    if (busy) return;
    busy = true;
    problem.textContent = "";
    draw();
    try {
      await task();
    } catch (error) {
      problem.textContent = error.message;
    }
    busy = false;
    if (!gone) draw();
  }

  const send = async ({ id, label }, answer) => { progress = await tell("review", { id, label, answer, who: name.value.trim() }, token); };

  async function act(answer) {
    await guarded(async () => {
      if (answer === "undo") {
        const last = past.at(-1);
        if (!last) return;
        if (last.answer !== "skip") await send(last.question, "undo");
        past.pop();
        queue = [last.question, ...queue.filter(({ place }) => place !== last.question.place)];
        return;
      }
      const question = queue[0];
      if (!question) return;
      if (answer !== "skip") await send(question, answer);
      past.push({ question, answer });
      queue.shift();
      if (queue.length < 3) await fetchMore();
    });
  }

  function pressed(event) {
    const answer = KEYS[event.key] ?? (event.key === "z" && (event.ctrlKey || event.metaKey) ? "undo" : null);
    const modified = event.ctrlKey || event.metaKey || event.altKey;
    if (!answer || (modified && event.key !== "z") || event.target === name || event.repeat || !token) return;
    event.preventDefault();
    act(answer);
  }

  document.addEventListener("keydown", pressed);
  if (!token) problem.textContent = "To answer, open the address that steelyard serve printed: it ends with a token.";
  const told = token ? "" : problem.textContent;
  guarded(fetchMore).then(() => { if (told && !problem.textContent) problem.textContent = told; });
  return {
    update() {},
    leave() { gone = true; document.removeEventListener("keydown", pressed); },
  };
}
