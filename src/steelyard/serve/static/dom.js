// Elements made from data. Texts become text nodes only: no markup is ever read from data.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export const count = (n) => Number(n).toLocaleString("en");
export const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

/** A probability or threshold in few digits that never rounds to a certainty it is not: .953, <.001, >.999. */
export function chance(p) {
  if (p === null || p === undefined) return "–";
  if (p > 0 && p < 0.001) return "<.001";
  if (p < 1 && p > 0.999) return ">.999";
  return p.toFixed(3).replace(/^0/, "");
}

/** A score or frequency in per cent with one decimal. */
export const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);
