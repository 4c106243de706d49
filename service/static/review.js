// Marks of people: keep, drop, relabel and take back, by key or by button. A mark is shown at once, and taken off again, with
// the reason, where the server does not store it.

import { get, remove, request } from "./api.js";
import { announce, field, h, put } from "./dom.js";
import { count, percent, plural } from "./format.js";

const DONE = { keep: "Keep", drop: "Drop", relabel: "Relabel" };
const [NAME, BLIND] = ["noisegate-reviewer", "noisegate-blind"];
const LISTED = 60; // classes that the picker shows at a time

/** A mark in words: keep, drop, or the new class. */
export const markWords = (sample) => (sample.review === "relabel" ? `→ ${sample.review_name ?? `class ${sample.review_label}`}` : sample.review);
export const markBadge = (sample) => sample.review && h("span", { class: `mark is-${sample.review}` }, markWords(sample));
export const copyMark = (from, to) => Object.assign(to, copy(from));
const copy = (sample) => ({ review: sample.review, review_label: sample.review_label, review_name: sample.review_name });
const within = ({ hits, of, interval }) => `${percent(hits / of, 0)}; 95\u00a0%: ${percent(interval[0], 0)} to ${percent(interval[1], 0)}`;

/** `path(what)` is an address below the run, `show(sample)` draws a sample whose mark has changed, `queue(view)` links to one. */
export function createReview({ path, show, queue }) {
  const done = []; // {sample, before}: what undo takes back
  let sending = Promise.resolve(); // one after the other, in the order of the keys
  let [classes, relabels, timer, figures] = [[], false, null, null];
  const notes = [h("p", { class: "review-note", role: "alert" }), h("p", { class: "review-note", role: "alert" })];
  const panel = h("section", { class: "panel review-panel", "aria-labelledby": "review-title" });
  const name = h("input", { type: "text", maxlength: 100, autocomplete: "off", value: localStorage.getItem(NAME) ?? "", oninput: () => localStorage.setItem(NAME, name.value.trim()) });
  const blind = h("input", { type: "checkbox", checked: Boolean(localStorage.getItem(BLIND)), onchange: () => setBlind(blind.checked) });
  setBlind(blind.checked);

  function setBlind(on) {
    if (on) localStorage.setItem(BLIND, "1"); else localStorage.removeItem(BLIND);
    document.body.classList.toggle("blind", on);
  }

  const say = (...words) => notes.forEach((note) => put(note, ...words));

  /** Show `to` as the sample's mark and store it; what was shown before comes back where that fails. */
  function change(sample, to, before) {
    Object.assign(sample, to);
    show(sample);
    say();
    const place = path(`samples/${encodeURIComponent(sample.shard)}/${sample.index}/review`);
    sending = sending.then(async () => {
      try {
        if (to.review === null) await remove(`${place}?reviewer=${encodeURIComponent(name.value.trim())}`);
        else {
          const body = { mark: to.review, label: to.review_label, reviewer: name.value.trim() || null, image_sha256: sample.image_sha256, text_sha256: sample.text_sha256 };
          await request(place, { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
        }
        refreshSoon();
      } catch (error) {
        Object.assign(sample, before);
        const at = done.findLastIndex((one) => one.sample === sample);
        if (at >= 0) done.splice(at, 1);
        show(sample);
        say(h("b", {}, `${sample.key} is not marked. `), error.message);
      }
    });
  }

  function mark(sample, review, label = null, words = null) {
    const before = copy(sample);
    done.push({ sample, before });
    change(sample, { review, review_label: label, review_name: words }, before);
    announce(`${sample.key}: ${markWords(sample)}`);
  }

  /** Take the last mark back; returns its sample. */
  function undo() {
    const last = done.pop();
    if (!last) { announce("There is nothing to take back."); return null; }
    change(last.sample, last.before, copy(last.sample));
    announce(`${last.sample.key}: taken back`);
    return last.sample;
  }

  // --- the bar below a sample -----------------------------------------------------------------------------------------------
  function createBar({ sample, next, goTo }) {
    const picker = h("div", { class: "picker", hidden: true });
    const button = (what, words, key, act) => h("button", { type: "button", class: `secondary do-${what}`, "aria-keyshortcuts": key, onclick: act }, words, h("kbd", { "aria-hidden": "true" }, key.toUpperCase()));
    const act = {
      k: () => { mark(sample(), "keep"); next(); },
      d: () => { mark(sample(), "drop"); next(); },
      r: () => openPicker(),
      u: () => { const last = undo(); if (last) goTo(last); },
      j: () => next(),
    };
    const buttons = { keep: button("keep", DONE.keep, "k", act.k), drop: button("drop", DONE.drop, "d", act.d), relabel: button("relabel", DONE.relabel, "r", act.r) };
    const back = button("undo", "Undo", "u", act.u);
    const bar = h("footer", { class: "review-bar" }, notes[0], picker, h("div", { class: "review-buttons" }, Object.values(buttons), back));

    /** Show the mark of the sample, or that nothing can be marked while there is none. */
    function draw() {
      const now = sample();
      if (!now) picker.hidden = true;
      for (const [what, one] of Object.entries(buttons)) {
        one.setAttribute("aria-pressed", String(now?.review === what));
        one.disabled = !now;
      }
      buttons.relabel.hidden = !relabels || now?.label === null;
      put(buttons.relabel, now?.review === "relabel" ? markWords(now) : DONE.relabel, h("kbd", { "aria-hidden": "true" }, "R"));
      back.disabled = !done.length;
    }

    function keys(event) {
      const key = event.key.toLowerCase();
      if (!(key in act) || event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target.closest("input, textarea, select")) return;
      if (!sample() || (key === "r" && buttons.relabel.hidden)) return;
      event.preventDefault();
      act[key]();
    }

    function openPicker() {
      const now = sample();
      const first = now.predicted_label !== null && now.predicted_label !== now.label ? now.predicted_label : null;
      const all = [...(first === null ? [] : [first]), ...classes.keys()].filter((label, i) => label !== now.label && (i === 0 || label !== first));
      const words = (label) => classes[label] ?? `class ${label}`;
      let [found, at] = [all, 0];
      const list = h("ul", { role: "listbox", id: "picker-list", "aria-label": "Classes" });
      const input = h("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "picker-list", "aria-label": "The right class", placeholder: "The right class", autocomplete: "off", spellcheck: "false", oninput: () => { at = 0; list_(); }, onkeydown: press });
      function choose(label) {
        picker.hidden = true;
        mark(now, "relabel", label, words(label));
        next();
      }
      function list_() {
        const typed = input.value.trim().toLowerCase();
        found = all.filter((label) => words(label).toLowerCase().includes(typed) || String(label) === typed).slice(0, LISTED);
        put(list, found.map((label, i) => h("li", { role: "option", id: `picker-${i}`, "aria-selected": String(i === at), onclick: () => choose(label) }, words(label), label === first && h("span", { class: "hint" }, `looks like it, ${percent(now.predicted_confidence, 0)}`))),
          !found.length && h("li", { class: "hint" }, "No class has this name."));
        input.setAttribute("aria-activedescendant", found.length ? `picker-${at}` : "");
        list.children[at]?.scrollIntoView({ block: "nearest" });
      }
      function press(event) {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (step) at = Math.max(0, Math.min(found.length - 1, at + step));
        else if (event.key === "Enter" && found.length) choose(found[at]);
        else if (event.key === "Escape") { picker.hidden = true; buttons.relabel.focus(); }
        else return;
        event.preventDefault();
        event.stopPropagation();
        if (step) list_();
      }
      put(picker, input, list);
      picker.hidden = false;
      list_();
      input.focus();
    }

    return { element: bar, draw, keys };
  }

  // --- figures and queues above the gallery ---------------------------------------------------------------------------------
  function drawPanel() {
    const kinds = figures ? Object.entries(figures.counts).filter(([, n]) => n) : [];
    const marked = kinds.reduce((sum, [, n]) => sum + n, 0);
    const figure = (title, one, note) => h("div", { class: "agreement" }, h("dt", {}, title),
      h("dd", {}, one.of ? [h("b", {}, `${count(one.hits)} of ${count(one.of)}`), ` (${within(one)})`] : h("b", {}, "–")), h("dd", { class: "hint" }, note));
    const link = (view, title, note) => h("li", {}, h("a", { href: queue(view) }, h("b", {}, title), h("span", {}, note)));
    put(panel,
      h("div", { class: "chart-head" }, h("h2", { id: "review-title" }, "Review"),
        h("p", { class: "hint keys" }, ["K keep", "D drop", relabels && "R relabel", "U undo", "J next"].filter(Boolean).map((one) => [h("kbd", {}, one[0]), ` ${one.slice(2)} `]))),
      marked > 0 && h("dl", { class: "agreements" },
        figure("The tool agreed with you in", figures.agreed, "of all marks; depends on what you looked at"),
        figure("In the random sample", figures.random, figures.random.of ? "unbiased: holds for the whole run" : "not begun yet; only this figure is unbiased"),
        h("div", { class: "agreement" }, h("dt", {}, "Marked"), h("dd", {}, h("b", {}, plural(marked, "sample"))), h("dd", { class: "hint" }, kinds.map(([kind, n]) => `${count(n)} ${kind}`).join(", ") + (figures.stale ? `; ${count(figures.stale)} of samples that changed do not count` : "")))),
      h("ul", { class: "queues", "aria-label": "Queues of samples without a mark" },
        link("borderline", "Around the cut", "what the tool is least sure of"),
        link("worst", "Lowest first", "what the tool thinks worst"),
        link("random", "Random sample", "for an unbiased figure; skip none")),
      h("div", { class: "review-options" }, field("Your name (optional)", name), h("label", { class: "check" }, blind, " Hide what the tool says while I mark")),
      notes[1]);
  }

  function refreshSoon() {
    clearTimeout(timer);
    timer = setTimeout(refresh, 250);
  }

  async function refresh() {
    try {
      figures = await get(path("reviews?limit=0"));
    } catch (error) {
      figures = null;
      say(error.message);
    }
    drawPanel();
  }

  /** Another run: forget what was done in the last one. */
  function enter(summary) {
    done.length = 0;
    figures = null;
    relabels = Boolean(summary.labels);
    classes = summary.class_names.length ? summary.class_names : Array.from({ length: Math.max(-1, ...summary.class_counts.map((one) => one.label)) + 1 }, (_, i) => `class ${i}`);
    say();
    drawPanel();
    refresh();
  }

  return { panel, enter, createBar, drawPanel, mark, undo, stored: () => sending };
}
