// Found items as cards.

import { thumbnail } from "./api.js";
import { bar } from "./bars.js";
import { chance, el } from "./dom.js";

/** A picture of an item, or its name where it has none. */
export function picture(id, hasImages, size = "small") {
  const instead = () => el("span", { class: "nothing" }, id);
  if (!hasImages) return instead();
  const image = el("img", { src: thumbnail(id, size), alt: id, loading: size === "small" ? "lazy" : null, decoding: "async" });
  image.addEventListener("error", () => image.replaceWith(instead()), { once: true });
  return image;
}

export function card(hit, terms, href, open, hasImages) {
  return el("a", {
    class: "card", href, "data-id": hit.id, "aria-label": `${hit.id}, score ${chance(hit.score)}`,
    onclick: (event) => { if (!(event.metaKey || event.ctrlKey || event.shiftKey)) { event.preventDefault(); open(hit.id); } },
  },
  el("span", { class: "frame" }, picture(hit.id, hasImages), el("span", { class: "score", title: "score: the probability of the whole query" }, chance(hit.score))),
  el("span", { class: "bars" }, terms.map(({ label, present }) => bar(label, hit.probabilities[label], { absent: !present }))));
}

/** Other cards in a grid; who was on one of the old stays on its item, or where that is gone, on its place. */
export function replaceCards(grid, cards) {
  const old = [...grid.children];
  const at = old.indexOf(document.activeElement);
  grid.replaceChildren(...cards);
  if (at < 0 || cards.length === 0) return;
  const same = cards.find((one) => one.dataset.id === old[at].dataset.id);
  (same ?? cards[Math.min(at, cards.length - 1)]).focus({ preventScroll: true });
}

/** Arrow keys move among the cards of a grid, whatever its number of columns. */
export function arrows(event, grid) {
  const cards = [...grid.children];
  const at = cards.indexOf(document.activeElement);
  if (at < 0) return;
  const columns = cards.filter((one) => one.offsetTop === cards[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  const next = event.key === "Home" ? 0 : event.key === "End" ? cards.length - 1 : step && at + step;
  if (next === undefined || !cards[next]) return;
  event.preventDefault();
  cards[next].focus();
}
