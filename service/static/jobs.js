// Jobs: annotate shards in the background, follow the progress, and go on to the result.

import { ApiError, events, get, post } from "./api.js";
import { announce, busy, choice, empty, field, h, problem, put } from "./dom.js";
import { bytes, count, duration, percent, plural, when } from "./format.js";

const OVER = ["done", "failed", "cancelled"];
const WORDS = { queued: "waiting", running: "running", done: "done", failed: "failed", cancelled: "cancelled" };

export function createJobs(root, { scorer }) {
  const list = h("ul", { class: "job-list", "aria-label": "Jobs" });
  const side = h("div");
  const main = h("div", {}, list);
  const jobs = new Map(); // id to {job, item, stop, seen}
  put(root, h("h1", {}, "Jobs"), h("p", { class: "lead" }, "Score whole shards in the background. A job goes on after a restart of the server."),
    h("div", { class: "jobs-grid" }, side, main));

  async function prepare() {
    const facts = await scorer();
    if (!facts.jobs) {
      put(side);
      put(main, empty("Jobs are off on this server.", h("p", {}, "Start it with ", h("code", {}, "--jobs-folder DIR --root DIR"), ".")));
      return false;
    }
    put(side, form(facts));
    return true;
  }

  function form(facts) {
    const shards = h("textarea", { rows: 3, required: true, class: "mono", spellcheck: "false", placeholder: "data/x-{000000..000012}.tar" });
    const name = h("input", { type: "text", required: true, maxlength: 100, autocomplete: "off", spellcheck: "false", pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", title: "letters, digits, dot, dash and underscore" });
    const task = choice([["pairs", "captions"], ["labels", "class labels"], ["pairs,labels", "both"]], "pairs");
    const classes = choice([["", "none"], ...facts.classes.map((one) => [one, one])], "");
    const beta = h("input", { type: "text", placeholder: "auto", autocomplete: "off", spellcheck: "false" });
    const textField = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    const said = h("div");
    const start = h("button", { class: "primary" }, "Start");
    const withClasses = field("Classes", classes);
    const follow = () => { withClasses.hidden = task.value === "pairs" || !facts.classes.length; };
    task.addEventListener("change", follow);
    follow();
    return h("form", { class: "panel job-form", onsubmit: async (event) => {
      event.preventDefault();
      start.disabled = true;
      put(said);
      try {
        const given = { shards: shards.value.split("\n").map((line) => line.trim()).filter(Boolean), name: name.value.trim(), task: task.value };
        if (classes.value && task.value !== "pairs") given.classes = classes.value;
        if (beta.value.trim()) given.beta = beta.value.trim();
        if (textField.value.trim()) given.text_field = textField.value.trim();
        const job = await post("/v1/jobs", given);
        name.value = "";
        announce(`Job ${job.name} was started.`);
        take(job);
      } catch (error) {
        put(said, problem(error));
      } finally {
        start.disabled = false;
      }
    } },
    h("h2", {}, "Start a job"), h("p", { class: "hint" }, `Scored with ${facts.identity?.model ?? "the server's model"}.`), h("br"),
    field("Shards", shards, "Paths below the server's roots, one pattern per line."),
    field("Name of the result", name), field("What to score", task), withClasses,
    h("details", {}, h("summary", {}, "More settings"), field("β", beta, "auto, intersection, or fixed:0.215"), field("Caption's JSON field", textField)),
    said, start);
  }

  function take(job) {
    if (!jobs.size) put(main, list);
    const known = jobs.get(job.id) ?? { item: h("li", { class: "panel job", "data-job": job.name }), seen: [], stop: null };
    const before = known.job?.state;
    known.job = { ...known.job, ...job };
    const done = known.job.progress?.bytes_done;
    if (known.job.state === "running" && Number.isFinite(done)) {
      known.seen.push([performance.now() / 1000, done, known.job.progress.samples]);
      known.seen = known.seen.slice(-60);
    }
    jobs.set(job.id, known);
    if (!known.item.isConnected) list.prepend(known.item);
    draw(known);
    if (OVER.includes(known.job.state)) { known.stop?.abort(); known.stop = null; } else follow(known);
    if (before && before !== known.job.state && OVER.includes(known.job.state)) announce(`Job ${known.job.name} is ${WORDS[known.job.state]}.`);
  }

  /** Rate over the last reports, and seconds left at that rate. */
  function pace({ seen, job }) {
    const [first, last] = [seen[0], seen.at(-1)];
    if (!first || last[0] - first[0] < 0.5) return {};
    const seconds = last[0] - first[0];
    const speed = (last[1] - first[1]) / seconds;
    return { rate: (last[2] - first[2]) / seconds, left: speed > 0 ? (job.progress.bytes_todo - last[1]) / speed : null };
  }

  function draw(known) {
    const { job, item } = known;
    const p = job.progress ?? {};
    const share = p.bytes_todo ? Math.min(1, p.bytes_done / p.bytes_todo) : null;
    const { rate, left } = pace(known);
    const running = job.state === "running";
    const focused = item.contains(document.activeElement) && document.activeElement.className;
    const notes = (p.notes ?? []).map((note) => note.text ?? note);
    put(item,
      h("div", { class: "job-head" }, h("h3", {}, job.name), h("span", { class: `state ${job.state}` }, WORDS[job.state] ?? job.state), h("span", { class: "time" }, when(Date.parse(job.ended ?? job.started ?? job.created) / 1000))),
      running && h("progress", { max: 1, value: share ?? undefined, "aria-label": `Progress of ${job.name}` }),
      h("p", { class: "job-figures" },
        running && h("span", {}, share === null ? "starting" : share === 1 ? "scoring" : percent(share, 0)),
        p.samples > 0 && h("span", {}, plural(p.samples, "sample")),
        p.failed_samples > 0 && h("span", {}, `${count(p.failed_samples)} failed`),
        p.shards_todo > 0 && h("span", {}, `${count((p.shards_before ?? 0) + p.shards_done)} of ${plural((p.shards_before ?? 0) + p.shards_todo, "shard")}`),
        running && share !== null && h("span", {}, `${bytes(p.bytes_done)} of ${bytes(p.bytes_todo)}`),
        running && rate > 0 && h("span", {}, `${count(Math.round(rate))} samples/s`),
        running && share < 1 && left !== null && left !== undefined && h("span", {}, `${duration(left)} left`)),
      running && notes.length > 0 && h("p", { class: "job-note" }, notes.at(-1)),
      job.error && h("p", { class: "job-error" }, job.error),
      h("div", { class: "actions" },
        job.state === "done" && h("a", { class: "secondary", href: `#/browse/${encodeURIComponent(job.name)}` }, "Browse the result"),
        !OVER.includes(job.state) && h("button", { type: "button", class: "quiet cancel", onclick: (event) => { event.target.disabled = true; cancel(job); } }, "Cancel")));
    if (focused) item.querySelector(`.${focused.split(" ").at(-1)}`)?.focus();
  }

  async function cancel(job) {
    try {
      take(await post(`/v1/jobs/${encodeURIComponent(job.id)}/cancel`, {}));
    } catch (error) {
      if (error instanceof ApiError && error.code !== "unreachable") await load();
      announce(error.message);
    }
  }

  /** Listen until the job is over; a stream that breaks is opened again. */
  async function follow(known) {
    if (known.stop) return;
    const stop = known.stop = new AbortController();
    const path = `/v1/jobs/${encodeURIComponent(known.job.id)}`;
    for (let pause = 500; !stop.signal.aborted; pause = Math.min(pause * 2, 10000)) {
      try {
        await events(`${path}/events`, (kind, data) => {
          pause = 500;
          heard(known, kind, data);
        }, stop.signal);
        if (!stop.signal.aborted) take(await get(path));
      } catch (error) {
        if (stop.signal.aborted) return;
      }
      await new Promise((resolve) => { setTimeout(resolve, pause); });
    }
  }

  function heard(known, kind, data) {
    if (kind === "progress") take({ id: known.job.id, state: data.state ?? "running", progress: { ...known.job.progress, ...(data.progress ?? data) } });
    else if (kind === "note") take({ id: known.job.id, progress: { ...known.job.progress, notes: [...(known.job.progress?.notes ?? []), data] } });
    else if (kind === "done") take({ ...(data.job ?? data), id: known.job.id });
  }

  async function load() {
    try {
      if (!side.childElementCount && !(await prepare())) return;
      const found = await get("/v1/jobs");
      const all = found.jobs ?? found;
      if (!all.length && !jobs.size) put(main, empty("No jobs yet.", h("p", {}, "Name some shards and start one.")));
      else put(main, list);
      all.forEach(take);
    } catch (error) {
      put(main, problem(error, load));
    }
  }

  return {
    update() {
      if (!jobs.size) put(main, busy("Asking for jobs…"));
      load();
    },
    leave() {
      for (const known of jobs.values()) { known.stop?.abort(); known.stop = null; }
    },
  };
}
