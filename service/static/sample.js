// One sample in a dialog: its picture, its caption, every column of its row, and what lies near it.

import { get, request, samplePicture } from "./api.js";
import { busy, h, problem, put } from "./dom.js";
import { percent, score, weight } from "./format.js";
import { copyMark } from "./review.js";
import { ask, neighbour } from "./score.js";

const SHARES = new Set(["clean_probability", "knn_consistency", "anchor_consistency", "consistency", "probe_consistency", "label_quality", "predicted_confidence", "refined_confidence"]);
const WORDS = {
  key: "key", shard: "shard", index: "position in the shard", status: "status", error: "what was wrong",
  similarity: "similarity", osa_weight: "weight", clean_probability: "chance to be right", clean: "verdict",
  label: "given class", label_quality: "label quality", knn_consistency: "neighbours agree", anchor_consistency: "class texts agree",
  consistency: "consistency", probe_consistency: "linear probe agrees", clean_tango: "kept by TANGO", neighbourhood: "agreement with the neighbourhood", pair_quality: "similarity above others'",
  predicted_label: "looks like", predicted_confidence: "confidence in that", refined_label: "label after repair", refined_confidence: "confidence in it", flags: "flags", image_sha256: "picture, SHA-256", text_sha256: "caption, SHA-256",
};

/** The given class and what the sample looks like, null where labels were not judged. */
export function classWords(sample) {
  if (sample.label === null || sample.predicted_label === null) return null;
  const name = (which, label) => h("b", {}, sample[which] ?? `class ${label}`);
  return h("span", { class: "turn" }, "given ", name("label_name", sample.label),
    h("span", { class: "verdict" }, ", looks like ", name("predicted_name", sample.predicted_label), `, ${percent(sample.predicted_confidence, 0)}`, changed(sample)));
}

/** What became of the label by the repair; it may have become another class than the sample looks like. */
function changed(sample) {
  if (sample.refined_label === null || sample.refined_label === sample.label) return "";
  if (sample.refined_label === sample.predicted_label) return " (changed)";
  return [" (changed to ", h("b", {}, sample.refined_name ?? `class ${sample.refined_label}`), ")"];
}

export function createSample({ next, closed, review, goTo }) {
  let current = null; // the sample that is shown, null while one is read
  const body = h("div", { class: "sample-body" });
  const title = h("h2", { id: "sample-title" });
  const [before, after] = [["←", "Previous sample", -1], ["→", "Next sample", 1]].map(([sign, words, step]) =>
    h("button", { type: "button", class: "quiet", "aria-label": words, title: words, onclick: () => next(step) }, sign));
  const done = h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close");
  const dialog = h("dialog", { class: "sample", "aria-labelledby": "sample-title", onclick: (event) => { if (event.target === dialog) dialog.close(); } },
  h("header", { class: "sample-head" }, title, before, after, done), body);
  const bar = review.createBar({ sample: () => current, next: () => next(1), goTo });
  dialog.append(bar.element);
  bar.draw();
  document.addEventListener("keydown", (event) => { // of the document: a button that is disabled while it has the focus loses it
    if (!dialog.open) return;
    bar.keys(event);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && !event.target.closest("input, textarea, select")) { event.preventDefault(); next(step); }
  });
  dialog.addEventListener("close", () => closed());
  document.body.append(dialog);
  let turn = 0;

  async function open(run, shard, index, place) {
    const mine = ++turn;
    const base = `/v1/runs/${encodeURIComponent(run)}/samples/${encodeURIComponent(shard)}/${encodeURIComponent(index)}`;
    before.disabled = !place || place.first;
    after.disabled = !place || place.last;
    wait();
    dialog.scrollTop = 0;
    if (!dialog.open) { put(body, busy("Reading…")); title.textContent = "Sample"; dialog.showModal(); done.focus(); }
    try {
      const sample = await get(base);
      if (mine !== turn) return;
      if (place) copyMark(place.card, sample); // which may not be stored yet
      draw(run, base, sample);
    } catch (error) {
      if (mine === turn) put(body, problem(error));
    }
  }

  /** Another sample is on its way: nothing can be marked until it is shown. */
  function wait() {
    current = null;
    bar.draw();
  }

  /** The mark of the sample shown has changed. */
  function showMark(sample) {
    if (current && current !== sample && current.shard === sample.shard && current.index === sample.index) copyMark(sample, current);
    bar.draw();
  }

  function draw(run, base, sample) {
    title.textContent = sample.key;
    current = sample;
    bar.draw();
    const near = h("div", { class: "near" });
    const again = `#/score?from=${encodeURIComponent([run, sample.shard, sample.index].map(encodeURIComponent).join("/"))}`;
    const scored = sample.status === "ok";
    put(body,
      h("div", { class: "sample-grid" },
        h("div", {}, h("div", { class: "big-frame" }, samplePicture(run, sample, 1024, sample.caption ? `Picture with the caption: ${sample.caption}` : "Picture of the sample")),
          h("p", { class: "sample-said", dir: "auto" }, sample.caption ?? h("span", { class: "none" }, sample.problem ?? "no caption")),
          classWords(sample),
          h("div", { class: "actions" },
            scored && h("a", { class: "secondary", href: again }, "Score it again"),
            scored && h("button", { type: "button", class: "secondary", onclick: (event) => { event.target.disabled = true; showNear(run, base, sample, near); } }, "Show its neighbours"))),
        h("dl", { class: "rows" }, Object.keys(WORDS).filter((name) => sample[name] !== null && sample[name] !== undefined && !(name === "flags" && !sample.flags.length))
          .map((name) => h("div", {}, h("dt", {}, WORDS[name]), h("dd", {}, value(name, sample)))))),
      near);
  }

  async function showNear(run, base, sample, near) {
    put(near, busy("Looking for neighbours…"));
    try {
      const blob = await (await request(`${base}/image?original=true`)).blob();
      const answer = await ask(new File([blob], "picture", { type: blob.type }), [sample.caption], { against: run, key: sample.key });
      const [found] = answer.results;
      const list = found.neighbours ?? [];
      put(near, h("h3", {}, `Nearest in ${run}`), list.length ? h("ul", { class: "strip" }, list.map((one) => neighbour(one, run))) : h("p", { class: "hint" }, found.error ?? "It has none."));
    } catch (error) {
      put(near, problem(error));
    }
  }

  return { open, showMark, wait, close: () => { if (dialog.open) dialog.close(); } };
}

function value(name, sample) {
  const found = sample[name];
  if (["label", "predicted_label", "refined_label"].includes(name)) {
    const words = sample[`${name.replace("_label", "")}_name`];
    return words ? `${words} (${found})` : String(found);
  }
  if (name === "clean") return h("span", { class: `fate ${found ? "kept" : "dropped"}` }, found ? "kept" : "dropped");
  if (typeof found === "boolean") return found ? "yes" : "no";
  if (name === "flags") return found.join(", ");
  if (name === "osa_weight") return weight(found);
  if (SHARES.has(name)) return percent(found);
  if (typeof found === "number" && name !== "index") return score(found, 4);
  if (name.endsWith("sha256")) return h("code", {}, `${found.slice(0, 16)}…`);
  return name === "key" || name === "shard" ? h("code", {}, found) : String(found);
}
