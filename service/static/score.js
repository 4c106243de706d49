// Score: one picture, one or many captions, and how far they belong together.

import { get, request, samplePicture } from "./api.js";
import { mark, scale, span } from "./chart.js";
import { announce, busy, choice, empty, field, h, problem, put } from "./dom.js";
import { bytes, percent, plural, score, weight } from "./format.js";

const ACCEPTED = ["image/jpeg", "image/png", "image/webp", "image/gif"];
const WHY = {
  no_image: "There is no picture.",
  bad_image: "The picture cannot be read.",
  no_text: "The caption is empty.",
  bad_text: "The caption holds characters that are none.",
  too_large: "It is over the server's limits.",
  invalid: "The model has no answer for it.",
};

export function createScore(root, { scorer }) {
  const state = { file: null, url: null, facts: null, usual: null, run: 0, prepared: null };
  const input = h("input", { type: "file", accept: ACCEPTED.join(","), class: "unseen", id: "picture-file", onchange: () => choose(input.files[0]) });
  const drop = h("div", { class: "drop", ondragover: over, ondragleave: () => drop.classList.remove("over"), ondrop: dropped });
  const captions = h("textarea", { rows: 4, placeholder: "a red circle on a white background\na blue star in the centre", spellcheck: "true",
    onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } } });
  const more = h("div", { class: "options" });
  const go = h("button", { class: "primary" }, "Score");
  const results = h("div", { class: "results", "aria-live": "polite" });
  const samples = h("p", { class: "try" });
  const limits = h("span");

  put(root,
    h("h1", {}, "Does this caption fit the picture?"),
    h("p", { class: "lead" }, "Drop a picture and write a caption. Several captions, one per line, are ranked. ", limits),
    h("div", { class: "score-grid" },
      h("div", { class: "panel" }, drop, input, samples),
      h("form", { class: "panel", onsubmit: (event) => { event.preventDefault(); run(); } },
        field("Captions, one per line", captions), more,
        h("div", { class: "actions" }, go, h("span", { class: "hint keys" }, h("kbd", {}, "Ctrl"), " + ", h("kbd", {}, "Enter"))))),
    results);
  preview();
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
    if (file && !root.hidden) { event.preventDefault(); choose(file); }
  });

  async function prepare() {
    try {
      state.facts = await scorer();
      if (state.facts.identity?.model === "embedded") put(limits, "The model here, embedded, knows drawn scenes only.");
      const runs = (await get("/v1/runs")).runs.filter((one) => !one.problem);
      const before = { against: chosen("against"), classes: chosen("classes"), label: chosen("label") };
      const sets = state.facts.classes;
      const against = choice([["", "none"], ...runs.map((one) => [one.name, one.name])], "", { name: "against" });
      const classes = choice([["", "none"], ...sets.map((name) => [name, name])], "", { name: "classes" });
      const label = h("input", { type: "text", name: "label", autocomplete: "off", placeholder: "name or number" });
      for (const [control, value] of [[against, before.against], [classes, before.classes], [label, before.label]]) if (value) control.value = value;
      put(more, runs.length > 0 && field("Compare with a run", against), sets.length > 0 && field("Class set", classes),
        (runs.some((one) => one.tasks.includes("labels")) || sets.length > 0) && field("Given class", label));
      const home = state.facts.run;
      if (home && !state.usual) state.usual = (await get(`/v1/runs/${encodeURIComponent(home)}/summary`)).usual;
      const first = runs.find((one) => one.tasks.includes("pairs"));
      put(samples, first && ["Nothing at hand? ", h("button", { type: "button", class: "link", onclick: () => borrow(first.name) }, `Take a sample from ${first.name}`)]);
    } catch (error) {
      if (!results.childElementCount) put(results, problem(error, () => { put(results); state.prepared = prepare(); }));
    }
  }
  document.addEventListener("server-ready", () => { if (!state.facts) { put(results); state.prepared = prepare(); } });

  function over(event) { event.preventDefault(); drop.classList.add("over"); }

  function dropped(event) {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) choose(event.dataTransfer.files[0]);
  }

  function choose(file, quiet = false) {
    if (!file) return;
    if (!ACCEPTED.includes(file.type)) {
      put(results, problem({ title: "This is no picture the server reads.", message: `${file.name || "The file"} is ${file.type || "of an unknown type"}; use JPEG, PNG, WebP or GIF.` }));
      return;
    }
    const most = state.facts?.limits?.max_image_bytes;
    if (most && file.size > most) {
      put(results, problem({ title: "This picture is too large.", message: `It has ${bytes(file.size)}; the server takes ${bytes(most)}.` }));
      return;
    }
    if (state.url) URL.revokeObjectURL(state.url);
    state.file = file;
    state.url = URL.createObjectURL(file);
    preview();
    announce("Picture chosen.");
    if (!quiet && lines().length) run();
  }

  function preview() {
    const pick = (words, kind) => h("button", { type: "button", class: kind, onclick: () => input.click() }, words);
    if (!state.file) {
      put(drop, h("div", { class: "drop-words" }, h("p", { class: "drop-title" }, "Drop a picture here"), h("p", { class: "hint" }, "or paste one from the clipboard"), pick("Choose a picture", "secondary")));
      return;
    }
    const image = h("img", { src: state.url, alt: "The picture to score" });
    const size = h("span", {}, bytes(state.file.size));
    image.addEventListener("load", () => { size.textContent = `${image.naturalWidth} × ${image.naturalHeight}, ${bytes(state.file.size)}`; });
    put(drop, h("div", { class: "drop-picture" }, image), h("p", { class: "drop-foot" }, size, pick("Another picture", "link")));
  }

  const lines = () => [...new Set(captions.value.split("\n").map((line) => line.trim()).filter(Boolean))];
  const chosen = (name) => more.querySelector(`[name=${name}]`)?.value.trim() || null;

  async function run(key) {
    const texts = lines();
    const label = chosen("label");
    if (!state.file) { put(results, empty("Choose a picture first.")); input.focus(); return; }
    if (!texts.length && !chosen("classes") && !chosen("against")) { put(results, empty("Write at least one caption.")); captions.focus(); return; }
    const turn = ++state.run;
    go.disabled = true;
    put(results, busy("Scoring…"));
    try {
      await state.prepared; // the scale shows where pairs usually lie
      const answer = await ask(state.file, texts.length ? texts : [null], { classes: chosen("classes"), against: chosen("against"), label, key });
      if (turn === state.run) draw(texts.length ? texts : [null], answer);
    } catch (error) {
      if (turn === state.run) put(results, problem(error, () => run(key)));
    } finally {
      go.disabled = false;
    }
  }

  function draw(texts, answer) {
    const beta = Number.isFinite(answer.beta?.value) ? answer.beta.value : null;
    const rows = answer.results.map((result, i) => ({ ...result, text: texts[i] }));
    const good = rows.filter((row) => Number.isFinite(row.similarity)).sort((a, b) => b.similarity - a.similarity);
    const bad = rows.filter((row) => row.status !== "ok");
    const range = span(good.map((row) => row.similarity), beta, state.usual);
    put(results, bad.length === rows.length && !good.length ? null : h("h2", {}, good.length > 1 ? `${plural(good.length, "caption")}, best first` : "Result"),
      good.length === 1 && verdict(good[0], beta),
      good.length === 1 && h("div", { class: "panel" }, scale(range, beta, state.usual), mark(range, good[0].similarity, beta, kept(good[0], beta))),
      good.length > 1 && h("div", { class: "panel ranking" },
        h("div", { class: "rank-head", "aria-hidden": "true" }, h("span", {}, "caption"), scale(range, beta, state.usual), ["similarity", "weight", "right", ""].map((name) => h("span", { class: "num" }, name))),
        h("ol", { class: "ranks" }, good.map((row) => rank(row, range, beta)))),
      bad.map((row) => h("div", { class: "problem" }, row.text !== null && h("p", { class: "said" }, row.text || "(empty)"), h("p", {}, WHY[row.status] ?? "This could not be scored.", " ", h("span", { class: "reason" }, row.error ?? "")))),
      labels(rows[0]), neighbours(rows.find((row) => row.neighbours?.length), chosen("against")));
    announce(good.length ? `${good[0].text}: similarity ${score(good[0].similarity)}` : "Nothing could be scored.");
  }

  function verdict(row, beta) {
    const tile = (name, value, note) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: "big" }, value), note && h("dd", { class: "small" }, note));
    const above = beta !== null && row.similarity > beta;
    return h("dl", { class: "tiles" },
      tile("similarity", score(row.similarity), beta === null ? null : `${above ? "above" : "below"} β ${score(beta)}`),
      tile("weight", weight(row.osa_weight), row.osa_weight === 0 ? "training would skip it" : null),
      row.clean_probability !== null && row.clean_probability !== undefined && tile("chance that it is right", percent(row.clean_probability), "calibrated on the run"));
  }

  function rank(row, range, beta) {
    const keep = kept(row, beta);
    return h("li", {},
      h("p", { class: "said" }, row.text ?? "no caption"),
      mark(range, row.similarity, beta, keep),
      h("dl", { class: "figures" }, figure("similarity", score(row.similarity)), figure("weight", weight(row.osa_weight)), figure("right", percent(row.clean_probability)),
        h("div", {}, h("dt", { class: "unseen" }, "verdict"), h("dd", { class: `fate ${keep ? "kept" : "dropped"}` }, keep ? "keep" : "drop"))));
  }

  function labels(row) {
    const known = [["refined_name", "class that fits best"], ["refined_label", "class that fits best"], ["refined_confidence", "confidence"], ["anchor_consistency", "agrees with the class texts"], ["knn_consistency", "agrees with the neighbours"], ["consistency", "consistency"]]
      .filter(([name]) => row?.[name] !== null && row?.[name] !== undefined)
      .filter(([name]) => name !== "refined_label" || !row.refined_name);
    const likely = row?.predicted ?? [];
    if (!known.length && !likely.length) return null;
    return h("div", { class: "panel" }, h("h3", {}, likely.length ? "Class, by the class texts" : "Class"),
      likely.length > 0 && h("ol", { class: "likely" }, likely.map((one) => h("li", {}, h("span", {}, one.name), h("span", { class: "likely-bar", "aria-hidden": "true" }, h("i", { place: { width: `${(100 * one.probability).toFixed(1)}%` } })), h("span", {}, percent(one.probability))))),
      h("dl", { class: "pairs" }, known.map(([name, words]) => h("div", {}, h("dt", {}, words),
      h("dd", {}, typeof row[name] === "string" || name === "refined_label" ? String(row[name]) : percent(row[name]))))));
  }

  function neighbours(row, against) {
    if (!row || !against) return null;
    return h("div", { class: "panel" }, h("h3", {}, `Nearest in ${against}`), h("ul", { class: "strip" }, row.neighbours.map((one) => neighbour(one, against))));
  }

  async function borrow(name) {
    try {
      const path = `/v1/runs/${encodeURIComponent(name)}/samples`;
      const { reachable } = await get(`${path}?view=all&status=ok&limit=1`);
      const page = await get(`${path}?view=all&status=ok&limit=3&captions=true&offset=${Math.floor(Math.random() * Math.max(1, reachable - 3))}`);
      await take(name, page.samples[0], page.samples.map((one) => one.caption));
    } catch (error) {
      put(results, problem(error));
    }
  }

  async function take(name, sample, texts) {
    const blob = await (await request(`/v1/runs/${encodeURIComponent(name)}/samples/${encodeURIComponent(sample.shard)}/${sample.index}/image?original=true`)).blob();
    captions.value = texts.filter(Boolean).join("\n");
    choose(new File([blob], sample.key, { type: blob.type }), true);
    run();
  }

  return {
    async update({ params }) {
      state.prepared = prepare(); // runs may have come meanwhile
      const from = params.get("from");
      if (!from) return;
      const [name, shard, index] = from.split("/").map(decodeURIComponent);
      history.replaceState(null, "", "#/score");
      try {
        const sample = await get(`/v1/runs/${encodeURIComponent(name)}/samples/${encodeURIComponent(shard)}/${index}`);
        await take(name, sample, [sample.caption]);
      } catch (error) {
        put(results, problem(error));
      }
    },
  };
}

const kept = (row, beta) => row.clean ?? (beta === null || row.similarity > beta);
const figure = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** POST the picture once, however many captions there are. */
export async function ask(file, texts, { classes = null, against = null, label = null, key = null } = {}) {
  const given = label !== null && /^\d+$/.test(label) ? Number(label) : label;
  const pairs = texts.map((text) => ({ image: "part:picture", ...(text === null ? {} : { text }), ...(given === null ? {} : { label: given }), ...(key ? { key } : {}) }));
  const form = new FormData();
  form.append("request", new Blob([JSON.stringify({ pairs, classes, against })], { type: "application/json" }));
  form.append("picture", file, file.name || "picture");
  return (await request("/v1/score", { method: "POST", body: form })).json();
}

/** A sample of a run as a small picture that leads to it. */
export function neighbour(one, run) {
  const link = `#/browse/${encodeURIComponent(run)}?sample=${encodeURIComponent(`${one.shard}/${one.index}`)}`;
  return h("li", {}, h("a", { href: link }, h("span", { class: "frame" }, samplePicture(run, one, 160, `Neighbour ${one.key}`)),
    h("span", { class: "strip-foot" }, h("span", { class: "key" }, one.key), h("span", {}, score(one.similarity)))));
}
