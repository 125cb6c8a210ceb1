// Plots over time, drawn by uPlot on a canvas: with a readout, zoom and keys. Colours come from the style sheet.

const COLOURS = 8; // of detectors; --c0 to --c7
let colours = new Map();
function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}
const lineColour = (i) => `c${i % COLOURS}`;

const redraws = []; // of everything on a canvas, after the theme or the size has changed
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  colours = new Map();
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Use ${name === "dark" ? "light" : "dark"} colours`);
  for (const redraw of redraws) redraw();
}

/** Labels of ticks on the axis of time, in UTC: the date where it changes, and the clock as exact as the step. */
function timeTicks(plot, ticks, axis, space, step) {
  let before = "";
  return ticks.map((ms) => {
    const [day, clock] = moment(ms).split(" ");
    if (step >= DAY) return day;
    const text = clock.slice(0, step >= 60_000 ? 5 : step >= 1000 ? 8 : 12), isNew = day !== before;
    before = day;
    return isNew ? `${text}\n${day}` : text;
  });
}

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", Arial, sans-serif';
function axis(options) {
  const line = () => colour("line");
  return {
    font: FONT, stroke: () => colour("quiet"), grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 5 },
    ...options,
  };
}
const sizeOfLabels = (plot, labels) => 14 + 7 * Math.max(3, ...(labels ?? []).map((text) => text.length));

/** Moves a plot over its whole range: to a part of it, by shares of what it shows, and back. */
function zoomOf(full, plotted) {
  const zoom = (from, to) => {
    const width = Math.min(Math.max(to - from, (full[1] - full[0]) / 1e5), full[1] - full[0]);
    const min = Math.min(Math.max(from, full[0]), full[1] - width);
    plotted().setScale("x", { min, max: min + width });
  };
  const move = (by, factor = 1) => {
    const { min, max } = plotted().scales.x, middle = (min + max) / 2 + by * (max - min), half = (factor * (max - min)) / 2;
    zoom(middle - half, middle + half);
  };
  return { zoom, move, reset: () => zoom(...full) };
}

function zoomBar(label, { move, reset }) {
  return make("div", { class: "bar", role: "group", "aria-label": `Zoom of ${label}` },
    button("Zoom in", () => move(0, 0.5)), button("Zoom out", () => move(0, 2)), button("Earlier", () => move(-0.5)),
    button("Later", () => move(0.5)), button("Whole range", reset));
}

/** Keys of a plot that has the focus. */
function listenForKeys(canvas, plot, places, { move, reset }) {
  const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return; // keys of the browser
    if (event.key in zooms) move(0, zooms[event.key]);
    else if (event.key === "0" || event.key === "Escape") reset();
    else if (event.key.startsWith("Arrow") && event.shiftKey) move(event.key === "ArrowLeft" ? -0.5 : 0.5);
    else if (!stepCursor(plot, event.key, places)) return;
    event.preventDefault();
  });
}

function plotOptions({ series, y, layers = [], height = 260 }, width, reset, read) {
  return {
    width, height, ms: 1, tzDate: (ms) => uPlot.tzDate(new Date(ms), "UTC"),
    scales: { x: { time: isTimed }, y: y.range ? { range: y.range } : {} },
    legend: { show: false }, series: [{}, ...series],
    axes: [
      axis({ values: isTimed ? timeTicks : (u, ticks) => ticks.map(number), space: 84, size: 46 }),
      axis({ values: (u, ticks) => ticks.map(y.text ?? number), size: sizeOfLabels }),
    ],
    cursor: { y: false, points: { size: 8 }, bind: { dblclick: () => () => { reset(); return null; } } },
    hooks: { setCursor: [(u) => read(u.cursor.idx)], draw: layers },
  };
}

/** While the plot has the focus, what is read is also said by a screen reader; a pointer would make it talk too much. */
function sayWhatIsRead(node, readout) {
  node.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
  node.addEventListener("blur", () => readout.removeAttribute("aria-live"));
}

/**
 * A plot over time.
 *
 * data: as uPlot takes it, first the places; series: of uPlot, without the first; full: [from, to] of the whole range;
 * y: {text(value), range}; describe(i): the readout at a place; layers: functions that draw more, on the canvas.
 * Gives {box, start, zoom}; the box has to be in the page when `start()` is called, which gives uPlot's plot.
 */
function timePlot(options) {
  const { label, summary, data, full, describe, height = 260 } = options;
  const canvas = make("div", { class: "plot", tabindex: "0", role: "group", "aria-label": label, "aria-roledescription": "plot" });
  const readout = make("p", { class: "readout" }, HINT), box = make("div", { class: "figure" }, canvas, readout);
  let plot = null;
  const moves = zoomOf(full, () => plot);
  const read = (i) => { readout.textContent = isKnown(i) ? describe(i) : HINT; };
  const fit = () => plot.setSize({ width: Math.max(200, canvas.clientWidth), height });
  const start = () => {
    plot = new uPlot(plotOptions(options, Math.max(200, canvas.clientWidth), moves.reset, read), data, canvas);
    moves.reset();
    redraws.push(() => { fit(); plot.redraw(false, true); });
    new ResizeObserver(() => { if (canvas.clientWidth && canvas.clientWidth !== plot.width) fit(); }).observe(canvas);
    listenForKeys(canvas, plot, data[0], moves);
    sayWhatIsRead(canvas, readout);
    return plot;
  };
  if (full[1] > full[0]) box.prepend(zoomBar(label, moves));
  if (summary) box.append(sentence(summary));
  return { box, start, zoom: moves.zoom };
}
const HINT = "Point at the plot, or focus it and use the arrow keys, to read values. Drag to zoom; + and − zoom too, 0 shows the whole range.";

/** Move the cursor of a plot to the place before or after, within what is shown; false for other keys. */
function stepCursor(plot, key, places) {
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[key];
  if (!step || !places.length) return false;
  const { min, max } = plot.scales.x;
  let first = places.findIndex((x) => x >= min), last = places.length - 1;
  while (last > 0 && places[last] > max) last--;
  first = Math.max(0, Math.min(first, last));
  const now = plot.cursor.idx ?? (step > 0 ? first - 1 : last + 1);
  let next = Math.max(first, Math.min(last, now + step));
  while (next > first && next < last && plot.data.slice(1).every((values) => !isKnown(values[next]))) next += Math.sign(step);
  plot.setCursor({ left: plot.valToPos(places[next], "x"), top: plot.over.clientHeight / 2 });
  return true;
}

/** Buttons that show and hide what a plot has. items: {name, colour, dash, kind, off}; toggle(i, isShown). */
function legend(label, items, toggle) {
  const box = make("div", { class: "legend", role: "group", "aria-label": label });
  items.forEach((item, i) => {
    const swatch = make("span", { class: `swatch ${item.kind ?? ""}`, "aria-hidden": "true" });
    swatch.style.setProperty("--swatch", `var(--${item.colour})`);
    const one = make("button", { type: "button", "aria-pressed": String(!item.off) }, swatch, item.name);
    one.addEventListener("click", () => {
      const isShown = one.getAttribute("aria-pressed") !== "true";
      one.setAttribute("aria-pressed", String(isShown));
      toggle(i, isShown);
    });
    box.append(one);
  });
  return box;
}
