// Browse: the figures of a finished run, its histogram, and galleries of the samples worth seeing. All of it is in the address.

import { get, samplePicture } from "./api.js";
import { histogram } from "./chart.js";
import { announce, busy, choice, empty, field, h, problem, put } from "./dom.js";
import { count, percent, plural, score } from "./format.js";
import { copyMark, createReview, markBadge } from "./review.js";
import { classWords, createSample } from "./sample.js";

const PAGE = 24;
const VIEWS = { worst: "Worst", borderline: "Borderline", best: "Best", random: "Random", all: "All, in order" };
const REVIEWED = [["", "all"], ["none", "not reviewed"], ["disagree", "we disagree"], ["any", "reviewed"], ["keep", "keep"], ["drop", "drop"], ["relabel", "relabel"]];
const ASKED = ["min_probability", "max_probability", "status", "label", "clean", "review", "flag", "key", "where"];
const NAMES = { similarity: "similarity", clean_probability: "chance that the label is right", neighbourhood: "agreement with the neighbourhood" };

export function createBrowse(root) {
  const state = { run: null, runs: null, summary: null, params: new URLSearchParams(), samples: [], total: 0, turn: 0, filters: null };
  const body = h("div");
  const chooser = h("div", { class: "run-choice" });
  put(root, h("div", { class: "head" }, h("h1", {}, "Browse a run"), chooser), body);
  const review = createReview({ path: (what) => path(what), show: showMark, queue: (view) => address({ view: view === "worst" ? null : view, review: "none", sample: "first", offset: null }) });
  const dialog = createSample({ next: (step) => neighbourSample(step), closed: leaveSample, review, goTo: (sample) => jump(sample) });
  const gallery = h("ul", { class: "cards", "aria-label": "Samples", onkeydown: press });
  const chart = h("div", { class: "panel" });
  const shown = h("p", { class: "shown", role: "status" });
  const pager = h("nav", { class: "pager", "aria-label": "Pages" });
  const tabs = h("div", { class: "tabs", role: "group", "aria-label": "Which samples" });
  const form = h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); go(given()); } });
  let last = "";

  const path = (what) => `/v1/runs/${encodeURIComponent(state.run)}/${what}`;
  const address = (changes) => {
    const params = new URLSearchParams(state.params);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "") params.delete(name); else params.set(name, value);
    }
    if (!("offset" in changes) && !("sample" in changes)) params.delete("offset");
    return `#/browse/${encodeURIComponent(state.run)}${params.size ? `?${params}` : ""}`;
  };
  function go(changes, quiet = false) {
    const to = address(changes);
    if (quiet) { history.replaceState(null, "", to); state.params = new URLSearchParams(to.split("?")[1] ?? ""); }
    else location.hash = to;
  }

  async function update({ path: [wanted], params }) {
    state.params = params;
    const turn = ++state.turn;
    if (!params.get("sample")) dialog.close();
    try {
      if (!state.runs || (wanted && !state.runs.some((one) => one.name === wanted))) state.runs = (await get("/v1/runs")).runs;
      if (turn !== state.turn) return;
      const usable = state.runs.filter((one) => !one.problem);
      if (!state.runs.length) return void put(chooser, put(body, empty("There is no run to browse yet.", h("p", {}, "Start the server with ", h("code", {}, "--run DIR"), ", or ", h("a", { href: "#/jobs" }, "start a job"), "."))) && null);
      const name = wanted ?? (usable[0] ?? state.runs[0]).name;
      put(chooser, state.runs.length > 1 ? field("Run", choice(state.runs.map((one) => [one.name, one.name + (one.problem ? ` (${one.problem})` : "")]), name,
        { onchange: (event) => { location.hash = `#/browse/${encodeURIComponent(event.target.value)}`; } })) : h("p", { class: "only-run" }, name));
      if (name !== state.run || !state.summary) await enter(name, turn);
      if (turn !== state.turn) return;
      review.drawPanel();
      if (params.get("sample") !== "first") return void await Promise.all([refresh(turn), openSample()]);
      last = "";
      await refresh(turn);
      if (turn === state.turn) jump(state.samples[0] ?? null);
    } catch (error) {
      if (turn === state.turn) { state.summary = null; put(body, problem(error, () => update({ path: [wanted], params }))); }
    }
  }

  async function enter(name, turn) {
    state.run = name;
    state.summary = null;
    last = "";
    put(body, busy("Reading the tables…"));
    const summary = await get(path("summary"));
    if (turn !== state.turn) return;
    state.summary = summary;
    drawFilters(summary);
    review.enter(summary);
    put(body, ...[...summary.warnings, ...summary.notes].map((text) => h("p", { class: "notice" }, text)), tiles(summary), chart, review.panel,
      h("div", { class: "gallery-head" }, tabs, form), shown, gallery, pager);
  }

  const lens = () => state.summary.lenses.find((one) => one.rank === state.params.get("by")) ?? state.summary.lenses[0];

  function tiles(summary) {
    const tile = (name, value, note) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: "big" }, value), note && h("dd", { class: "small" }, note));
    const ok = summary.statuses.ok ?? 0;
    const known = summary.calibration ?? (summary.labels ? { noise_rate: summary.labels.noise_rate, noise_interval: summary.labels.noise_interval, expected: summary.labels.expected } : null);
    const within = known?.noise_interval && `${percent(known.noise_interval[0])} to ${percent(known.noise_interval[1])}`;
    const failed = summary.samples - ok;
    return h("dl", { class: "tiles" },
      tile("samples", count(summary.samples), failed ? `${plural(failed, "sample")} could not be scored` : `in ${plural(summary.shards, "shard")}`),
      tile("kept", percent(summary.judged ? summary.kept / summary.judged : null), `${count(summary.kept)} of ${count(summary.judged)}`),
      known && tile(summary.labels && !summary.calibration ? "wrong labels, estimated" : "wrong pairs, estimated", percent(known.noise_rate), within),
      known?.expected && !(summary.labels && summary.calibration) && tile("of what is kept, right", percent(known.expected.clean_precision), `${percent(known.expected.clean_recall)} of the right ones are kept`),
      summary.labels && summary.calibration && tile("wrong labels, estimated", percent(summary.labels.noise_rate), summary.labels.noise_interval && `${percent(summary.labels.noise_interval[0])} to ${percent(summary.labels.noise_interval[1])}`),
      summary.beta && tile("β", score(summary.beta.value), summary.beta.interval ? `${score(summary.beta.interval[0])} to ${score(summary.beta.interval[1])}` : summary.beta.mode));
  }

  function drawFilters(summary) {
    const value = (name) => state.params.get(name) ?? "";
    const number = (name) => h("input", { type: "number", name, min: 0, max: 1, step: "any", inputmode: "decimal", placeholder: name.startsWith("min") ? "0" : "1" });
    const statuses = Object.entries(summary.statuses);
    const classes = summary.class_counts;
    const flags = Object.entries(summary.flags);
    const instant = { onchange: () => go(given()) };
    state.filters = {
      min_probability: number("min_probability"), max_probability: number("max_probability"),
      clean: choice([["", "all"], ["true", "kept"], ["false", "dropped"]], value("clean"), instant),
      review: choice(REVIEWED.filter(([kind]) => kind !== "relabel" || summary.labels), value("review"), instant),
      status: statuses.length > 1 && choice([["", "any"], ...statuses.map(([name, n]) => [name, `${name} (${count(n)})`])], value("status"), instant),
      label: classes.length > 0 && choice([["", "any"], ...classes.map((one) => [one.label, `${one.name ?? `class ${one.label}`} (${count(one.count)})`])], value("label"), instant),
      flag: flags.length > 0 && choice([["", "any"], ...flags.map(([name, n]) => [name === "duplicate" ? "duplicate_of" : name, `${name} (${count(n)})`])], value("flag"), instant),
      key: h("input", { type: "search", name: "key", autocomplete: "off", spellcheck: "false" }),
      where: h("input", { type: "text", name: "where", autocomplete: "off", spellcheck: "false", placeholder: "similarity < 0.2 and status = 'ok'", class: "mono" }),
    };
    const f = state.filters;
    const probable = summary.calibration || summary.labels;
    put(form,
      probable && h("fieldset", { class: "range" }, h("legend", {}, "Chance to be right"), h("span", { class: "from-to" },
        named(f.min_probability, "At least"), h("span", { "aria-hidden": "true" }, "to"), named(f.max_probability, "At most"))),
      field("Verdict", f.clean), field("Your marks", f.review), f.status && field("Status", f.status), f.label && field("Given class", f.label),
      h("details", { class: "more-filters" }, h("summary", {}, "More"), h("div", { class: "more-body" },
        f.flag && field("Flag", f.flag), field("Key contains", f.key), field("Rule", f.where, "as in noisegate export --where"))),
      h("div", { class: "filter-actions" }, h("button", { class: "secondary" }, "Apply"),
        h("a", { class: "reset", href: "#" , onclick: (event) => { event.preventDefault(); go(Object.fromEntries(ASKED.map((name) => [name, null]))); } }, "Reset")));
  }
  const named = (control, label) => { control.setAttribute("aria-label", label); return control; };
  const given = () => Object.fromEntries(ASKED.filter((name) => state.filters[name]).map((name) => [name, state.filters[name].value.trim() || null]));

  async function refresh(turn) {
    for (const [name, control] of Object.entries(state.filters)) if (control) control.value = state.params.get(name) ?? "";
    const active = ASKED.filter((name) => state.params.get(name));
    form.querySelector(".reset").hidden = !active.length;
    if (["flag", "key", "where"].some((name) => state.params.get(name))) form.querySelector("details").open = true;
    const failing = state.params.get("status") && state.params.get("status") !== "ok";
    const view = failing ? "all" : state.params.get("view") ?? "worst";
    const views = Object.entries(VIEWS).filter(([name]) => (name !== "borderline" || lens().cut !== null) && (!failing || name === "all"));
    put(tabs, views.map(([name, words]) => h("a", { href: address({ view: name === "worst" ? null : name }), "aria-current": name === view ? "true" : null }, words)),
      state.summary.lenses.length > 1 && h("span", { class: "lens" }, "by ", state.summary.lenses.map((one, i) => h("a", { href: address({ by: i ? one.rank : null }), "aria-current": one === lens() ? "true" : null }, one.noun))));
    const query = new URLSearchParams(active.map((name) => [name, state.params.get(name)]));
    const bins = new URLSearchParams(query);
    bins.set("column", lens().column);
    query.set("view", view);
    if (lens() !== state.summary.lenses[0]) query.set("by", lens().rank);
    query.set("offset", state.params.get("offset") ?? "0");
    query.set("limit", String(PAGE));
    const now = `${query}`;
    if (now === last) return;
    gallery.setAttribute("aria-busy", "true");
    if (!gallery.childElementCount) put(shown, "Looking…");
    try {
      const [page, spread] = await Promise.all([get(path(`samples?${query}`)), get(path(`histogram?${bins}`))]);
      if (turn !== state.turn) return;
      last = now;
      drawChart(spread);
      drawCards(page);
      addCaptions(turn, query);
    } catch (error) {
      if (turn !== state.turn) return;
      last = "";
      put(shown);
      put(pager);
      put(gallery, h("li", { class: "wide" }, problem(error)));
    } finally {
      gallery.removeAttribute("aria-busy");
    }
  }

  function drawChart(bins) {
    chart.hidden = !bins.edges.length;
    const name = NAMES[bins.column] ?? bins.column.replaceAll("_", " ");
    const key = (kind, words) => h("li", {}, h("i", { class: `k-${kind}` }), words);
    put(chart, h("div", { class: "chart-head" }, h("h2", {}, `How ${lens().noun}s are spread`), h("ul", { class: "legend" }, key("kept", "kept"), key("dropped", "dropped"), bins.unknown.some(Boolean) && key("unknown", "not decided"))),
      bins.edges.length > 0 && histogram(bins, name));
  }

  function drawCards(page) {
    state.samples = page.samples;
    state.total = page.total;
    if (!page.samples.length) {
      put(gallery, h("li", { class: "wide" }, empty("No sample passes these filters.", h("p", {}, "Widen them, or reset them all."))));
      put(shown);
      put(pager);
      announce("No sample passes these filters.");
      return;
    }
    put(gallery, page.samples.map(card));
    const [from, to] = [page.offset + 1, page.offset + page.samples.length];
    put(shown, h("span", {}, `${count(from)} to ${count(to)} of ${plural(page.total, "sample")}`),
      page.total > page.reachable && h("span", { class: "hint" }, ` (the first ${count(page.reachable)} can be paged through)`));
    const link = (words, offset, ok) => (ok ? h("a", { class: "secondary", href: address({ offset: offset || null }) }, words) : h("span", { class: "secondary off", "aria-hidden": "true" }, words));
    put(pager, (page.offset > 0 || to < page.reachable) && [link("← Previous", Math.max(0, page.offset - PAGE), page.offset > 0), link("Next →", page.offset + PAGE, to < page.reachable)]);
  }

  function card(sample, number) {
    const figure = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
    const own = lens().noun === "label" ? ["label quality", score(sample.label_quality)] : lens().column === "neighbourhood" ? ["agreement", score(sample.neighbourhood)] : ["similarity", score(sample.similarity)];
    return h("li", {}, h("a", { class: "card", href: address({ sample: `${sample.shard}/${sample.index}`, offset: state.params.get("offset") }), "data-number": number, "data-place": `${sample.shard}/${sample.index}` },
      h("span", { class: "frame" }, samplePicture(state.run, sample, 320, ""), markBadge(sample)),
      h("span", { class: "body" },
        h("span", { class: "said", dir: "auto" }, sample.status === "ok" ? "…" : ""),
        classWords(sample),
        sample.status !== "ok" && h("span", { class: "failed" }, `${sample.status.replaceAll("_", " ")}: ${sample.error ?? ""}`),
        h("dl", { class: "figures" }, sample.status === "ok" && [figure(...own), sample.clean_probability !== null && sample.clean_probability !== sample.label_quality && figure("right", percent(sample.clean_probability))]),
        h("span", { class: "foot" }, h("span", { class: "key" }, sample.key), sample.clean !== null && h("span", { class: `fate ${sample.clean ? "kept" : "dropped"}` }, sample.clean ? "kept" : "dropped")))));
  }

  /** Captions take longer, since they are read from the shards: they come after the cards. */
  async function addCaptions(turn, query) {
    try {
      const told = await get(path(`samples?${query}&captions=true`));
      if (turn === state.turn) told.samples.forEach(addCaption);
    } catch (error) {
      if (turn === state.turn) put(shown, problem(error));
    }
  }

  function addCaption(sample) {
    const place = gallery.querySelector(`[data-place="${CSS.escape(`${sample.shard}/${sample.index}`)}"] .said`);
    if (!place) return;
    place.textContent = sample.caption ?? (sample.problem ? "The shard is not at hand." : "no caption");
    place.classList.toggle("none", sample.caption === null);
  }

  /** A sample's mark has changed: its card, and the dialog if it is open, show it. */
  function showMark(sample) {
    const place = `${sample.shard}/${sample.index}`;
    const mine = state.samples.find((one) => `${one.shard}/${one.index}` === place);
    if (mine) copyMark(sample, mine);
    const frame = gallery.querySelector(`[data-place="${CSS.escape(place)}"] .frame`);
    frame?.querySelector(".mark")?.remove();
    frame?.append(...[markBadge(sample)].filter(Boolean));
    dialog.showMark(sample);
  }

  /** Keys on a card: k and d mark it and go on, u takes the last mark back, arrows move. */
  function press(event) {
    const sample = state.samples[event.target.closest(".card")?.dataset.number];
    const mark = { k: "keep", d: "drop", u: "undo" }[event.key];
    if (!sample || !mark || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return arrows(event);
    event.preventDefault();
    const cards = [...gallery.querySelectorAll(".card")];
    const back = mark === "undo" ? review.undo() : review.mark(sample, mark);
    const to = mark === "undo" ? back && gallery.querySelector(`[data-place="${CSS.escape(`${back.shard}/${back.index}`)}"]`) : cards[Number(event.target.closest(".card").dataset.number) + 1];
    to?.focus();
  }

  function arrows(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 0, ArrowUp: 0, Home: 0, End: 0 }[event.key];
    const cards = [...gallery.querySelectorAll(".card")];
    const here = cards.indexOf(document.activeElement);
    if (step === undefined || here < 0) return;
    event.preventDefault();
    const top = cards[0].getBoundingClientRect().top;
    const columns = Math.max(1, cards.filter((one) => Math.abs(one.getBoundingClientRect().top - top) < 4).length);
    const to = { ArrowDown: here + columns, ArrowUp: here - columns, Home: 0, End: cards.length - 1 }[event.key] ?? here + step;
    cards[Math.max(0, Math.min(cards.length - 1, to))].focus();
  }

  const find = (place) => state.samples.findIndex((one) => `${one.shard}/${one.index}` === place);

  async function openSample() {
    const place = state.params.get("sample");
    if (!place) return;
    const cut = place.lastIndexOf("/");
    const here = find(place);
    const more = Number(state.params.get("offset") ?? 0) + state.samples.length < state.total;
    await dialog.open(state.run, place.slice(0, cut), place.slice(cut + 1), here < 0 ? null : { first: here === 0, last: here === state.samples.length - 1 && !more, card: state.samples[here] });
  }

  /** Show this sample, or say that the queue is done where there is none. */
  function jump(sample) {
    go({ sample: sample && `${sample.shard}/${sample.index}`, offset: state.params.get("offset") }, true);
    if (sample) return openSample();
    dialog.close();
    announce("Nothing is left in this queue.");
  }

  /** The dialog is closed: the card of what it showed last gets the focus. */
  function leaveSample() {
    const place = state.params.get("sample");
    if (!place) return;
    go({ sample: null }, true);
    gallery.querySelector(`[data-place="${CSS.escape(place)}"]`)?.focus();
  }

  /** The sample before or after the one shown; after the last one of a page comes the next page. */
  async function neighbourSample(step) {
    const here = find(state.params.get("sample"));
    if (here < 0) return;
    if (state.samples[here + step]) return jump(state.samples[here + step]);
    if (step < 0) return;
    dialog.wait();
    const open = state.params.get("review") === "none" ? state.samples.filter((one) => !one.review).length : state.samples.length;
    await review.stored();
    const turn = ++state.turn;
    go({ offset: Number(state.params.get("offset") ?? 0) + open || null, sample: null }, true);
    last = "";
    await refresh(turn);
    if (turn === state.turn) jump(state.samples[0] ?? null);
  }

  return { update, leave: () => { dialog.close(); state.runs = null; } };
}
