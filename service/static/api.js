// Every request of the page: the key goes along, errors become sentences, pictures and events are fetched with it too.

import { field, h } from "./dom.js";

const KEY = "noisegate-key";
let asking = null;

export const key = () => sessionStorage.getItem(KEY);

export function forget() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

/** An answer that is no success: `code` for programs, `message` for people. */
export class ApiError extends Error {
  constructor(status, code, message, retryAfter) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }

  get title() {
    if (this.status === 0) return "The server does not answer.";
    if (this.status === 429) return "The server is busy.";
    if (this.status === 503) return "The server is not ready.";
    return "";
  }
}

async function failure(response) {
  const retry = Number(response.headers.get("Retry-After")) || null;
  try {
    const { error } = await response.json();
    return new ApiError(response.status, error.code, sentence(error.message), retry);
  } catch {
    return new ApiError(response.status, `http_${response.status}`, `It answered ${response.status} ${response.statusText}.`, retry);
  }
}

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".") : "");

/** fetch with the key; asks for one where the server wants it, and then tries again. */
export async function request(path, options = {}) {
  for (;;) {
    const sent = key();
    const headers = { ...options.headers, ...(sent ? { Authorization: `Bearer ${sent}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "unreachable", "Is it still running? Nothing you entered is lost.");
    }
    if (response.status === 401 && !options.signal?.aborted) {
      await askForKey(sent);
      continue;
    }
    if (!response.ok) throw await failure(response);
    return response;
  }
}

export const get = async (path, options) => (await request(path, options)).json();

/** Forget something on the server; there is no answer to read. */
export const remove = (path) => request(path, { method: "DELETE" });

export const post = async (path, body) =>
  (await request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

/** One dialog for all requests that wait for a key; `refused` is the key that was sent, if any. */
function askForKey(refused) {
  if (key() && refused !== key()) return Promise.resolve(); // another request has asked meanwhile
  sessionStorage.removeItem(KEY);
  asking ??= new Promise((resolve) => {
    const input = h("input", { type: "password", name: "key", autocomplete: "off", spellcheck: "false", required: true });
    const dialog = h("dialog", { class: "ask-key", "aria-labelledby": "key-title" },
      h("form", {
        method: "dialog",
        onsubmit: (event) => {
          event.preventDefault();
          if (!input.value.trim()) return;
          sessionStorage.setItem(KEY, input.value.trim());
          dialog.close();
        },
      },
      h("h2", { id: "key-title" }, "This server wants a key"),
      refused && h("p", { class: "problem", role: "alert" }, "That key was not accepted. Look for missing characters, or ask for a new one."),
      field("API key", input, "Kept in this tab only, until you close it."),
      h("div", { class: "actions" }, h("button", { class: "primary" }, "Continue"))));
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => { dialog.remove(); asking = null; resolve(); });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
  return asking;
}

/** Server-sent events through fetch, because EventSource cannot send a key. Calls `on(name, data)` until the end. */
export async function events(path, on, signal) {
  const response = await request(path, { headers: { Accept: "text/event-stream" }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value.replaceAll("\r\n", "\n");
    for (let end = buffer.indexOf("\n\n"); end >= 0; end = buffer.indexOf("\n\n")) {
      const lines = buffer.slice(0, end).split("\n");
      buffer = buffer.slice(end + 2);
      const name = lines.find((line) => line.startsWith("event:"))?.slice(6).trim() ?? "message";
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data) on(name, JSON.parse(data));
    }
  }
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    load(entry.target);
  }
}, { rootMargin: "800px" });

async function load(image) {
  try {
    const blob = await (await request(image.dataset.from)).blob();
    if (!image.isConnected) return;
    const url = URL.createObjectURL(blob);
    image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    image.src = url;
  } catch (error) {
    image.dispatchEvent(new CustomEvent("gone", { detail: error }));
  }
}

const NONE = { no_image: "no picture", bad_image: "not a picture" };

/** The picture of a run's sample, or why there is none to ask for. */
export function samplePicture(run, sample, size, alt) {
  const place = [run, "samples", sample.shard, sample.index].map(encodeURIComponent).join("/");
  return NONE[sample.status] ? h("span", { class: "gone" }, NONE[sample.status]) : picture(`/v1/runs/${place}/image?size=${size}`, alt);
}

/** A picture of the server, loaded when it comes into view; with a key it is fetched, since an img cannot send one. */
function picture(path, alt) {
  const image = h("img", { alt, decoding: "async" });
  const gone = (message) => image.replaceWith(h("span", { class: "gone" }, message));
  image.addEventListener("gone", (event) => gone(event.detail.message));
  if (key()) {
    image.dataset.from = path;
    seen.observe(image);
  } else {
    image.loading = "lazy";
    image.addEventListener("error", () => gone("The picture is not at hand."));
    image.src = path;
  }
  return image;
}
