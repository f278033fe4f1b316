// Plots: plain SVG whose colours are the page's.

import { chance, count, percent, svg } from "./dom.js";

const W = 420, H = 330, LEFT = 48, RIGHT = 12, TOP = 12, BOTTOM = 44;
const px = (v) => LEFT + v * (W - LEFT - RIGHT);
const py = (v, bottom = H - BOTTOM) => bottom - v * (bottom - TOP);
const cut = (text) => (text.length > 16 ? `${text.slice(0, 15)}…` : text);
const TICKS = [0, 0.2, 0.4, 0.6, 0.8, 1];

/** Axes from 0 to 1; the upright one is in per cent, the other too if it has `shares`. */
function frame(title, across, up, height, bottom, shares = false) {
  return svg("svg", { viewBox: `0 0 ${W} ${height}`, class: "chart", role: "img", "aria-label": title },
    svg("title", {}, title),
    TICKS.map((t) => [
      svg("line", { class: "faint", x1: px(t), x2: px(t), y1: TOP, y2: bottom }),
      svg("line", { class: "faint", x1: LEFT, x2: W - RIGHT, y1: py(t, bottom), y2: py(t, bottom) }),
      svg("text", { x: LEFT - 7, y: py(t, bottom) + 4, "text-anchor": "end" }, String(Math.round(100 * t))),
      svg("text", { x: px(t), y: height - BOTTOM + 17, "text-anchor": "middle" }, shares ? String(Math.round(100 * t)) : t.toFixed(1))]),
    svg("text", { x: (LEFT + W - RIGHT) / 2, y: height - 8, "text-anchor": "middle", class: "axis" }, across),
    svg("text", { x: 13, y: (TOP + bottom) / 2, "text-anchor": "middle", class: "axis", transform: `rotate(-90 13 ${(TOP + bottom) / 2})` }, up));
}

/** The share of items with the label against the mean probability; below it, the number of items per bin. */
export function reliability(bins) {
  const bottom = H - BOTTOM, strip = 56, height = H + strip;
  const most = Math.log10(Math.max(1, ...bins.counts) + 1);
  const chart = frame("reliability diagram", "probability", "present, %", height, bottom);
  chart.append(svg("line", { class: "ideal", x1: px(0), y1: py(0), x2: px(1), y2: py(1) }));
  const points = [];
  bins.counts.forEach((n, i) => {
    if (!n) return;
    const x = px(bins.confidence[i]), left = px(bins.edges[i]), right = px(bins.edges[i + 1]);
    const tall = (Math.log10(n + 1) / most) * (strip - 10), floor = bottom + strip;
    chart.append(
      svg("line", { class: "spread", x1: x, x2: x, y1: py(bins.low[i]), y2: py(bins.high[i]) }),
      svg("rect", { class: "count", x: left + 1, width: Math.max(1, right - left - 2), y: floor - tall, height: tall },
        svg("title", {}, `${count(n)} items, mean probability ${chance(bins.confidence[i])}, present in ${chance(bins.frequency[i])}`)));
    points.push([x, py(bins.frequency[i]), n]);
  });
  chart.append(svg("polyline", { class: "line", points: points.map(([x, y]) => `${x},${y}`).join(" ") }),
    ...points.map(([x, y]) => svg("circle", { class: "dot", cx: x, cy: y, r: 4 })));
  return chart;
}

/** Precision against recall; `mark(i)` moves the point to the i-th threshold. */
export function precisionRecall(curve) {
  const chart = frame("precision against recall", "recall, %", "precision, %", H, H - BOTTOM, true);
  const path = curve.recall.map((r, i) => `${i ? "L" : "M"}${px(r).toFixed(1)} ${py(curve.precision[i]).toFixed(1)}`).join("");
  const dot = svg("circle", { class: "here", r: 7, cx: 0, cy: 0 });
  chart.append(svg("path", { class: "line", d: path }), dot);
  const mark = (precision, recall) => { dot.setAttribute("cx", px(recall)); dot.setAttribute("cy", py(precision)); };
  return { chart, mark };
}

/** Positives of each label in training, the most frequent first, on a log scale; every bar is a link. */
export function frequency(labels, linkOf) {
  const width = 900, n = labels.length, named = n <= 40, room = named ? 24 + 5 * Math.max(...labels.map(({ name }) => cut(name).length)) : 26, bottom = 226, height = bottom + room;
  const most = Math.max(1, Math.ceil(Math.log10(Math.max(1, ...labels.map(({ positives }) => positives ?? 0)) + 1)));
  const y = (v) => bottom - (Math.log10(v + 1) / Math.log10(10 ** most + 1)) * (bottom - TOP);
  const step = (width - 60) / n;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart wide", role: "img", "aria-label": "positives of each label" },
    svg("title", {}, "positives of each label"));
  for (let e = 0; e <= most; e += 1) chart.append(
    svg("line", { class: "faint", x1: 52, x2: width - 8, y1: y(10 ** e), y2: y(10 ** e) }),
    svg("text", { x: 46, y: y(10 ** e) + 4, "text-anchor": "end" }, count(10 ** e)));
  labels.forEach(({ name, positives }, i) => {
    if (positives === null) return;
    const group = positives >= 100 ? "head" : positives < 20 ? "tail" : "medium";
    const top = y(positives);
    chart.append(svg("a", { href: linkOf(name), "data-link": true, "aria-label": `${name}: ${count(positives)}` },
      svg("title", {}, `${name}: ${count(positives)}`),
      named && svg("text", { x: 54 + (i + 0.5) * step, y: bottom + 14, "text-anchor": "end", transform: `rotate(-45 ${54 + (i + 0.5) * step} ${bottom + 14})` }, cut(name)),
      svg("rect", { class: "hit", x: 54 + i * step, width: step, y: TOP, height: bottom - TOP }),
      svg("rect", { class: group, x: 54 + i * step + Math.min(1, step * 0.1), width: Math.max(0.6, step - Math.min(2, step * 0.2)), y: top, height: Math.max(1, bottom - top) })));
  });
  if (!named) chart.append(svg("text", { x: width / 2, y: height - 6, "text-anchor": "middle", class: "axis" }, "labels, the most frequent first"));
  return chart;
}

/** p(row | column) as a table of squares; every square is a link to a search for both. */
export function heat(names, conditional, both, linkOf) {
  const cell = 24, longest = Math.max(...names.map((name) => cut(name).length));
  const left = 14 + 7 * longest, above = 18 + 5 * longest, size = names.length * cell;
  const width = left + size + above, height = above + size;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart heat", role: "img", "aria-label": "which labels come together" });
  names.forEach((name, i) => {
    const middle = (i + 0.5) * cell;
    chart.append(
      svg("text", { x: left - 6, y: above + middle + 4, "text-anchor": "end" }, cut(name), svg("title", {}, name)),
      svg("text", { x: left + middle, y: above - 8, transform: `rotate(-45 ${left + middle} ${above - 8})` }, cut(name), svg("title", {}, name)));
  });
  conditional.forEach((row, i) => row.forEach((p, j) => {
    const square = svg("rect", { class: i === j ? "self" : "share", x: left + j * cell + 1, y: above + i * cell + 1, width: cell - 2, height: cell - 2, rx: 3, vars: { "--p": Math.sqrt(p ?? 0) } },
      svg("title", {}, i === j ? `${names[i]}: ${count(both[i][i])} items` : `of the items with ${names[j]}, ${p === null ? "none is known to have" : `${percent(p)} have`} ${names[i]} too (${count(both[i][j])})`));
    chart.append(i === j ? square : svg("a", { href: linkOf(names[i], names[j]), "data-link": true, tabindex: -1 }, square));
  }));
  return chart;
}
