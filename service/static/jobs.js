// Jobs: annotate shards in the background, follow the progress, and go on to the result.

import { ApiError, events, get, post, remove } from "./api.js";
import { announce, busy, choice, empty, field, h, problem, put } from "./dom.js";
import { bytes, count, duration, percent, plural, when } from "./format.js";

const OVER = ["done", "failed", "cancelled"];
const STREAMS = 3;
const WORDS = { queued: "waiting", running: "running", done: "done", failed: "failed", cancelled: "cancelled" };

export function createJobs(root, { scorer }) {
  const list = h("ul", { class: "job-list", "aria-label": "Jobs" });
  const side = h("div");
  const main = h("div", {}, list);
  const jobs = new Map(); // id to {job, item, stop, seen}
  let timer = null;
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
    const classes = h("input", { type: "text", list: "class-sets", autocomplete: "off", spellcheck: "false" });
    const beta = h("input", { type: "text", placeholder: "auto", autocomplete: "off", spellcheck: "false" });
    const textField = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    const said = h("div");
    const start = h("button", { class: "primary" }, "Start");
    const withClasses = field("Classes", classes, "A class set of this server, or a built-in list.");
    withClasses.append(h("datalist", { id: "class-sets" }, [...facts.classes, "cifar10", "cifar100", "animal10n"].map((one) => h("option", { value: one }))));
    const follow = () => { withClasses.hidden = task.value === "pairs"; };
    task.addEventListener("change", follow);
    follow();
    return h("form", { class: "panel job-form", onsubmit: async (event) => {
      event.preventDefault();
      start.disabled = true;
      put(said);
      try {
        const given = { shards: shards.value.split("\n").map((line) => line.trim()).filter(Boolean), name: name.value.trim(), task: task.value };
        if (classes.value.trim() && task.value !== "pairs") given.classes = classes.value.trim();
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
    h("h2", {}, "Start a job"), h("p", { class: "hint" }, `Scored with ${facts.identity?.model ?? "the server's model"}.`),
    field("Shards", shards, "Paths below the server's roots, one pattern per line."), offers(shards),
    field("Name of the result", name), field("What to score", task), withClasses,
    h("details", {}, h("summary", {}, "More settings"), field("β", beta, "auto, intersection, or a number such as 0.215"), field("Caption's JSON field", textField)),
    said, start);
  }

  /** Folders with shards that the server found below its roots; a click adds the pattern. */
  function offers(shards) {
    const list = h("ul", { class: "offers", "aria-label": "Found on this server" });
    const add = (pattern) => {
      const lines = shards.value.split("\n").map((line) => line.trim()).filter(Boolean);
      if (!lines.includes(pattern)) shards.value = [...lines, pattern].join("\n");
      shards.focus();
    };
    get("/v1/jobs/shards").then(({ folders, prefixes }) => put(list,
      ...folders.map((one) => h("li", {}, h("button", { type: "button", class: "link mono", onclick: () => add(one.pattern) }, one.pattern), h("span", { class: "hint" }, `${plural(one.shards, "shard")}, ${bytes(one.bytes)}`))),
      ...prefixes.map((one) => h("li", {}, h("button", { type: "button", class: "link mono", onclick: () => add(`${one}*.tar`) }, `${one}*.tar`))),
      !folders.length && !prefixes.length && h("li", { class: "hint" }, "No tars lie below the server's roots."))).catch((error) => put(list, problem(error)));
    return list;
  }

  function take(job) {
    if (!jobs.size) put(main, list);
    const known = jobs.get(job.id) ?? { item: h("li", { class: "panel job", "data-job": job.name }), seen: [], stop: null };
    const before = known.job?.state;
    known.job = job;
    if (job.state !== "running" || known.seen.at(-1)?.[1] > job.progress.bytes_done) known.seen = [];
    if (job.state === "running") known.seen = [...known.seen.slice(-59), [performance.now() / 1000, job.progress.bytes_done, job.progress.samples]];
    jobs.set(job.id, known);
    if (!known.item.isConnected) list.prepend(known.item);
    draw(known);
    if (OVER.includes(job.state)) {
      known.stop?.abort();
      known.stop = null;
      if (before && before !== job.state) announce(`Job ${job.name} is ${WORDS[job.state]}.`);
    } else if (known.stop || (job.state === "running" && [...jobs.values()].filter((one) => one.stop).length < STREAMS)) follow(known);
    else poll();
  }

  /** Jobs that wait are asked for now and then: a browser opens only a few streams at a time. */
  function poll() {
    timer ??= setTimeout(() => { timer = null; if (!root.hidden) load(); }, 2000);
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
    const p = job.progress;
    const { share } = p;
    const { rate, left } = pace(known);
    const running = job.state === "running";
    const focused = item.contains(document.activeElement) && document.activeElement.className;
    put(item,
      h("div", { class: "job-head" }, h("h3", {}, job.name), h("span", { class: `state ${job.state}` }, WORDS[job.state] ?? job.state), h("span", { class: "time" }, when(Date.parse(job.ended ?? job.started ?? job.created) / 1000))),
      running && h("progress", { max: 1, value: share ?? undefined, "aria-label": `Progress of ${job.name}` }),
      h("p", { class: "job-figures" },
        running && h("span", {}, share === null ? "starting" : share === 1 ? "scoring" : percent(share, 0)),
        p.samples > 0 && h("span", {}, plural(p.samples, "sample")),
        Number.isFinite(job.summary?.kept) && h("span", {}, `${count(job.summary.kept)} kept`),
        p.failed_samples > 0 && h("span", {}, `${count(p.failed_samples)} failed`),
        p.shards_todo > 0 && h("span", {}, `${count(p.shards_before + p.shards_done)} of ${plural(p.shards_before + p.shards_todo, "shard")}`),
        running && share !== null && h("span", {}, `${bytes(p.bytes_done)} of ${bytes(p.bytes_todo)}`),
        running && rate > 0 && h("span", {}, `${count(Math.round(rate))} samples/s`),
        running && share < 1 && left !== null && left !== undefined && h("span", {}, `${duration(left)} left`)),
      running && p.notes.length > 0 && h("p", { class: "job-note" }, p.notes.at(-1).text),
      job.error && h("p", { class: "job-error" }, job.error),
      h("div", { class: "actions" },
        job.state === "done" && h("a", { class: "secondary", href: `#/browse/${encodeURIComponent(job.name)}` }, "Browse the result"),
        ["failed", "cancelled"].includes(job.state) && h("button", { type: "button", class: "quiet again", onclick: (event) => { event.target.disabled = true; again(job); } }, "Go on"),
        OVER.includes(job.state) && h("button", { type: "button", class: "quiet forget", onclick: () => forget(known) }, "Forget"),
        !OVER.includes(job.state) && h("button", { type: "button", class: "quiet cancel", onclick: (event) => { event.target.disabled = true; cancel(job); } }, "Cancel")));
    if (focused) item.querySelector(`.${focused.split(" ").at(-1)}`)?.focus();
  }

  const cancel = (job) => act(job.id, async () => take(await post(`/v1/jobs/${encodeURIComponent(job.id)}/cancel`, {})));

  /** The same settings under the same name go on where the job ended. */
  const again = (job) => act(job.id, async () => {
    const { shard_count: _, tasks, ...settings } = job.request;
    take(await post("/v1/jobs", { ...settings, name: job.name, task: tasks.join(",") }));
  });

  const forget = (known) => act(known.job.id, async () => {
    await remove(`/v1/jobs/${encodeURIComponent(known.job.id)}`);
    known.item.remove();
    jobs.delete(known.job.id);
    announce(`Job ${known.job.name} is forgotten; its tables stay.`);
    if (!jobs.size) nothing();
  });

  /** What was asked of a job, and its own line for what went wrong. */
  async function act(id, work) {
    try {
      await work();
    } catch (error) {
      if (error instanceof ApiError && error.status) await load();
      jobs.get(id)?.item.append(problem(error));
    }
  }

  const nothing = () => put(main, empty("No jobs yet.", h("p", {}, "Name some shards and start one.")));

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
    if (kind === "note") take({ ...known.job, progress: { ...known.job.progress, notes: [...known.job.progress.notes, data] } });
    else take(data); // progress and done bring the whole job
  }

  async function load() {
    try {
      if (!side.childElementCount && !(await prepare())) return;
      const found = await get("/v1/jobs");
      if (!found.jobs.length && !jobs.size) nothing();
      else put(main, list);
      found.jobs.forEach(take);
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
