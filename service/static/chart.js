// Two drawings: a histogram of kept and dropped rows, and a scale with β on which similarities are marked.

import { h, put, s } from "./dom.js";
import { count, score } from "./format.js";

/** Round steps (1, 2, 5 times a power of ten) that divide a span into about `wanted` parts. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9; i += 1) found.push([i * step || 0, digits]); // never -0
  return found;
}

/** Draw now and whenever the width changes. */
function responsive(draw) {
  const figure = h("div", { class: "chart" });
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now && now !== width) { width = now; put(figure, draw(now)); }
  }).observe(figure);
  return figure;
}

/** Stacked bars of what is kept, dropped and neither, with the cut as a line. */
export function histogram(bins, name) {
  const total = bins.kept.map((kept, i) => kept + bins.dropped[i] + bins.unknown[i]);
  const all = total.reduce((a, b) => a + b, 0);
  const words = `Histogram of ${name} over ${count(all)} samples` + (bins.cut === null ? "" : `, cut at ${score(bins.cut)}`);
  return responsive((width) => {
    const small = width < 560;
    const [left, right, top, bottom] = [small ? 36 : 46, 10, 26, 40];
    const height = small ? 210 : 250;
    const [low, high] = [bins.edges[0], bins.edges.at(-1)];
    const most = Math.max(...total, 1);
    const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
    const y = (value) => height - bottom - (value / most) * (height - top - bottom);
    const bar = (i, from, to, kind) => to > from && s("rect", { class: kind, x: x(bins.edges[i]) + 0.5, width: Math.max(1, x(bins.edges[i + 1]) - x(bins.edges[i]) - 1), y: y(to), height: y(from) - y(to) });
    const bars = total.map((whole, i) => {
      const [d, u] = [bins.dropped[i], bins.dropped[i] + bins.unknown[i]];
      return whole > 0 && s("g", {},
        s("title", {}, `${score(bins.edges[i])} to ${score(bins.edges[i + 1])}: ${count(bins.kept[i])} kept, ${count(bins.dropped[i])} dropped`),
        bar(i, 0, d, "dropped"), bar(i, d, u, "unknown"), bar(i, u, whole, "kept"));
    });
    const grid = ticks(0, most, 4).filter(([value]) => Number.isInteger(value)).map(([value]) => [
      s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      s("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, count(value))]);
    const axis = ticks(low, high, small ? 5 : 9).map(([value, digits]) => [
      s("line", { class: "base", x1: x(value), x2: x(value), y1: height - bottom, y2: height - bottom + 4 }),
      s("text", { x: x(value), y: height - bottom + 17, "text-anchor": "middle" }, score(value, digits))]);
    const inside = bins.cut !== null && bins.cut >= low && bins.cut <= high;
    const end = x(bins.cut) > width / 2;
    const cut = inside && [
      s("line", { class: "cut", x1: x(bins.cut), x2: x(bins.cut), y1: 8, y2: height - bottom }),
      s("text", { class: "cut-text", x: x(bins.cut) + (end ? -6 : 6), y: 17, "text-anchor": end ? "end" : "start" }, `${bins.cut_name} ${score(bins.cut)}`)];
    return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
      grid, bars, s("line", { class: "base", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }), axis,
      s("text", { class: "axis", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, name), cut);
  });
}

/** The span that a scale needs for these similarities, β and the usual places of pairs. */
export function span(values, beta, usual) {
  const all = [...values, beta, ...(usual?.wrong ?? []), ...(usual?.right ?? [])].filter((value) => Number.isFinite(value));
  const [low, high] = [Math.min(...all, 0), Math.max(...all, 0.1)];
  const room = Math.max(0.02, (high - low) * 0.06);
  return [Math.max(-1, low - room), Math.min(1, high + room)];
}

const at = ([low, high], value) => `${Math.max(0, Math.min(100, ((value - low) / (high - low)) * 100)).toFixed(2)}%`;

/** Where wrong and right pairs usually lie, β, and numbers; `rows` of the same span stand below it. */
export function scale(range, beta, usual) {
  const band = (kind, words) => {
    if (!usual?.[kind]) return null;
    const [low, middle, high] = usual[kind];
    const [from, to] = [parseFloat(at(range, low)), parseFloat(at(range, high))];
    const edge = parseFloat(at(range, middle)) > 80; // a name in the middle would stick out
    const name = h("span", { class: `band-name${edge ? " end" : ""}`, place: { left: at(range, edge ? high : middle) } }, words);
    return [h("span", { class: `band ${kind}`, place: { left: `${from}%`, width: `${Math.max(to - from, 0.6)}%` }, title: `${words}: nine in ten lie between ${score(low)} and ${score(high)}` }), name];
  };
  return h("div", { class: "scale", "aria-hidden": "true" },
    h("div", { class: "bands" }, band("wrong", "mismatched pairs"), band("right", "right pairs"),
      beta !== null && h("span", { class: "beta", place: { left: at(range, beta) } }, h("b", {}, `β ${score(beta)}`))),
    h("div", { class: "numbers" }, ticks(...range, 6).map(([value, digits]) => h("span", { place: { left: at(range, value) } }, score(value, digits)))));
}

/** One similarity as a bar that begins at the scale's zero, or at its left end. */
export function mark(range, value, beta, kept) {
  const from = parseFloat(at(range, Math.max(range[0], 0)));
  const to = parseFloat(at(range, value));
  return h("div", { class: "mark-track", "aria-hidden": "true" },
    beta !== null && h("span", { class: "beta-line", place: { left: at(range, beta) } }),
    h("span", { class: `mark-bar ${kept ? "kept" : "dropped"}`, place: { left: `${Math.min(from, to)}%`, width: `${Math.abs(to - from)}%` } }),
    h("span", { class: `mark-dot ${kept ? "kept" : "dropped"}`, place: { left: `${to}%` } }));
}
