// Elements without markup: text is always text, so nothing a server or a caption says can become HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "place") for (const [key, size] of Object.entries(value)) element.style.setProperty(key, size);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element; `on…` are listeners, `place` are style properties, the rest are attributes. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** The same for SVG. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Put children in place of what an element holds. */
export const put = (element, ...children) => {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
};

/** Say something to those who listen rather than look. */
export function announce(text) {
  const place = document.getElementById("announce");
  place.textContent = "";
  requestAnimationFrame(() => { place.textContent = text; });
}

/** A label with its field, and a hint below. */
export function field(label, control, hint) {
  const id = control.id || `field-${++field.count}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div", { class: "field" }, h("label", { for: id }, label), control, hint && h("p", { class: "hint", id: `${id}-hint` }, hint));
}
field.count = 0;

/** A select of [value, text] pairs. */
export const choice = (options, value, props) =>
  h("select", props, options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value ?? "") }, text)));

/** What went wrong, kindly, with a way on. */
export function problem(error, again) {
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, h("strong", {}, error.title ?? "That did not work. "), " ", error.message),
    again && h("button", { type: "button", class: "quiet", onclick: again }, "Try again"));
}

export const empty = (title, ...more) => h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), more);

export const busy = (text) => h("div", { class: "loading", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), text);
