// Numbers as people read them; a dash stands for what is not known.

const DASH = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const count = (value) => (known(value) ? value.toLocaleString("en-US") : DASH);

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** Cosines and other scores: three digits, a real minus sign. */
export const score = (value, digits = 3) => (known(value) ? value.toFixed(digits).replace("-", "−").replace(/^−(0\.?0*)$/, "$1") : DASH);

/** Weights are often small: three significant digits, 0 as 0. */
export function weight(value) {
  if (!known(value)) return DASH;
  if (value === 0) return "0";
  return value >= 0.001 ? String(Number(value.toPrecision(3))) : value.toExponential(1).replace("-", "−");
}

/** A share in percent that never rounds to a certainty it does not have. */
export function percent(value, digits = 1) {
  if (!known(value)) return DASH;
  const least = 10 ** -digits;
  const shown = value * 100;
  if (shown > 0 && shown < least) return `<\u00a0${least}\u00a0%`;
  if (shown < 100 && shown > 100 - least) return `>\u00a0${100 - least}\u00a0%`;
  return `${shown.toFixed(shown === 0 || shown === 100 ? 0 : digits)}\u00a0%`;
}

export function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 1) return "under a second";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function bytes(value) {
  if (!known(value)) return DASH;
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let step = 0;
  while (value >= 1000 && step < units.length - 1) { value /= 1000; step += 1; }
  return `${step && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[step]}`;
}

/** When something happened: the time today, else the date too. */
export function when(seconds) {
  if (!known(seconds)) return DASH;
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${time}`;
}
