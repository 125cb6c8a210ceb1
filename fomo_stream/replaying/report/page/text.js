// Numbers and times as text, and elements. Text of the report is only ever set as text, never as markup.

const NONE = "–", DAY = 86_400_000;
const byId = (id) => document.getElementById(id);
const report = JSON.parse(byId("data").textContent);
const timing = JSON.parse(byId("timing").textContent) ?? {};
const source = report.source ?? {};
const isTimed = source.axis !== "record";

const isKnown = (x) => x !== null && x !== undefined;
const known = (values) => (values ?? []).filter(isKnown);
const has = (values) => known(values).length > 0;
// A detector or a feature may be named like a property that every object has.
const own = (object, name) => (object && Object.hasOwn(object, name) ? object[name] : undefined);
// Of thousands of values: as arguments of Math.max they could be too many.
const highest = (values) => known(values).reduce((most, x) => (most === null || x > most ? x : most), null);
const lowest = (values) => known(values).reduce((least, x) => (least === null || x < least ? x : least), null);
const lastOf = (values) => values[values.length - 1];

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const PADDED = new Intl.NumberFormat("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });

const count = (x) => (isKnown(x) ? WHOLE.format(x) : NONE);
function digits(x, format) {
  if (!isKnown(x)) return NONE;
  const size = Math.abs(x);
  if (size >= 1e9) return x.toExponential(2);
  if (size >= 999.5) return WHOLE.format(x);
  if (size === 0) return "0";
  return size >= 1e-4 ? format.format(x) : x.toExponential(2);
}
/** Three significant digits; thousands as they are. */
const number = (x) => digits(x, SHORT);
/** The same with zeros at the end, for numbers below each other. */
const padded = (x) => digits(x, PADDED);
/** Three decimals: for numbers from 0 to 1 that are compared in a column. */
const decimals = (x) => (isKnown(x) ? x.toFixed(3) : NONE);
const share = (x) => (isKnown(x) ? `${number(100 * x)}\u00a0%` : NONE);
const paddedShare = (x) => (isKnown(x) ? `${padded(100 * x)}\u00a0%` : NONE);
function duration(s) {
  if (!isKnown(s)) return NONE;
  if (s === 0) return "0 s";
  if (s < 0.0009995) return `${number(1e6 * s)} µs`;
  if (s < 0.9995) return `${number(1000 * s)} ms`;
  if (s < 99.95) return `${number(s)} s`;
  if (s < 5970) return `${number(s / 60)} min`;
  return s < 172_000 ? `${number(s / 3600)} h` : `${number(s / 86_400)} days`;
}

/** A time in UTC: with its date, and as exact as it has to be. */
function moment(ms) {
  if (!isKnown(ms)) return NONE;
  if (Math.abs(ms) > 8.64e15) return number(ms); // beyond what a Date can be
  const [day, clock] = new Date(ms).toISOString().split("T");
  return `${day.replace("+", "")} ${clock.slice(0, ms % 1000 ? 12 : 8)}`;
}
/** A place on the axis: a time, or the number of a record. */
const place = (x) => (isTimed ? moment(x) : count(x));
const PLACE = isTimed ? "Time (UTC)" : "Record";
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
const list = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${lastOf(words)}`);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== false) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const SVG = "http://www.w3.org/2000/svg";
function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const sentence = (text, kind = "note") => make("p", { class: kind }, text);
function button(text, action, attributes = {}) {
  const node = make("button", { type: "button", ...attributes, class: `control ${attributes.class ?? ""}` }, text);
  node.addEventListener("click", action);
  return node;
}
function facts(pairs) {
  const shown = pairs.filter(([, value]) => isKnown(value) && value !== NONE);
  return make("dl", { class: "facts" }, ...shown.map(([k, v]) => make("div", {}, make("dt", {}, k), make("dd", {}, v))));
}
function mark(kind, word) {
  const sign = { good: "●", wait: "△", bad: "▲", none: "○" }[kind];
  return make("span", { class: "mark", "data-kind": kind }, make("span", { "aria-hidden": "true" }, sign), word);
}
