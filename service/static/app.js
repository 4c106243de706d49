// The page's frame: which view is shown follows the address, and the header says how the server is.

import { forget, get, key } from "./api.js";
import { h, put } from "./dom.js";
import { createBrowse } from "./browse.js";
import { createJobs } from "./jobs.js";
import { createScore } from "./score.js";

const CREATE = { score: createScore, browse: createBrowse, jobs: createJobs };
const TITLES = { score: "Score a picture", browse: "Browse a run", jobs: "Jobs" };
const views = {};

/** What the server scores with, asked once and again after a failure. */
let known = null;
export function scorer() {
  known ??= get("/v1/scorer").catch((error) => { known = null; throw error; });
  return known;
}

/** `#/browse/run?view=best` as {view, path, params}. */
function route() {
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...path] = where.split("/").map(decodeURIComponent);
  return { view: view in CREATE ? view : "score", path, params: new URLSearchParams(query ?? "") };
}

function show() {
  if (location.hash === "#content") return;
  const now = route();
  for (const name of Object.keys(CREATE)) document.getElementById(`view-${name}`).hidden = name !== now.view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === now.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[now.view]} · noisegate`;
  for (const [name, view] of Object.entries(views)) if (name !== now.view) view.leave?.();
  views[now.view] ??= CREATE[now.view](document.getElementById(`view-${now.view}`), { scorer });
  views[now.view].update(now);
}

let timer = null;

/** Ready or not, and why; asked again soon while it is not, and seldom while it is. */
async function health() {
  const place = document.getElementById("server");
  clearTimeout(timer);
  let [kind, words, hint] = ["bad", "no answer", "The server does not answer."];
  try {
    const response = await fetch("/readyz");
    const found = await response.json().catch(() => ({}));
    if (response.ok) [kind, words, hint] = ["good", "ready", "The model is loaded and the queue has room."];
    else {
      const reasons = found.reasons ?? found.error?.message ?? "";
      [kind, words, hint] = ["wait", "not ready yet", [reasons].flat().join("; ")];
    }
  } catch { /* said above */ }
  if (place.dataset.kind !== kind) {
    put(place, h("span", { class: `dot ${kind}`, "aria-hidden": "true" }), h("span", { class: "server-words", title: hint }, words),
      key() && h("button", { type: "button", class: "link", onclick: forget }, "Forget key"));
    place.dataset.kind = kind;
    if (kind === "good") { model(place); document.dispatchEvent(new Event("server-ready")); }
  }
  timer = setTimeout(health, document.hidden ? 60000 : kind === "good" ? 20000 : 2000);
}

async function model(place) {
  try {
    const found = await scorer();
    const words = place.querySelector(".server-words");
    if (words) words.textContent = found.identity?.model ?? "ready";
  } catch { /* the view that needs the scorer says so */ }
}

addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => { if (!document.hidden) health(); });
show();
health();
