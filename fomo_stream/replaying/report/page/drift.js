// How the features move away from the first records: a table, a heat map, and the median of one feature over time.

const SOME = 0.1, STRONG = 0.25, DEEPEST = 0.5; // PSI: the usual limits, and where the colours end
const ROWS = 30; // of the heat map, before all are asked for

function driftItems() {
  const found = report.drift;
  return (found?.features ?? []).map((name, i) => {
    const psi = found.psi?.[i] ?? [], median = found.median?.[i] ?? [], missing = found.missing?.[i] ?? [], most = highest(psi);
    return { name, psi, median, missing, most, at: isKnown(most) ? psi.indexOf(most) : null };
  });
}
function worstDrift() {
  const worst = driftItems().filter((one) => isKnown(one.most)).sort((a, b) => b.most - a.most)[0];
  return worst ? { name: worst.name, psi: worst.most } : null;
}
function judged(psi) {
  if (!isKnown(psi)) return NONE;
  return psi >= STRONG ? mark("bad", "strong") : psi >= SOME ? mark("wait", "some") : mark("good", "none");
}

function driftTable(items, starts, choose) {
  const lastKnown = (values) => known(values).at(-1) ?? null;
  const columns = [
    { name: "Feature", kind: "text name", head: true, of: (one) => one.name, node: (one) => button(one.name, () => choose(one), { class: "link", title: "Show its median over time" }) },
    { name: "Drift", kind: "text", of: (one) => one.most, node: (one) => judged(one.most) },
    { name: "Largest PSI", of: (one) => one.most },
    { name: isTimed ? "In the window from (UTC)" : "In the window from record", of: (one) => (isKnown(one.at) ? starts[one.at] : null), as: place },
    { name: "Last PSI", of: (one) => lastKnown(one.psi) },
    { name: "First median", of: (one) => known(one.median)[0] ?? null },
    { name: "Last median", of: (one) => lastKnown(one.median) },
    { name: "Most missing", of: (one) => highest(one.missing), as: paddedShare },
  ];
  return table("drift-table", "Drift of each feature", items, columns, { start: { by: "Largest PSI", down: true } });
}

const mixed = (a, b, t) => a.map((x, i) => Math.round(x + (b[i] - x) * t));
/** The colour of a PSI, by thirds: none, some, strong. */
function heat(psi) {
  const [none, some, strong] = ["heat0", "heat1", "heat2"].map((name) => colour(name).split(" ").map(Number));
  const t = Math.min(1, psi / DEEPEST), half = STRONG / DEEPEST;
  return `rgb(${(t < half ? mixed(none, some, t / half) : mixed(some, strong, (t - half) / (1 - half))).join(",")})`;
}

/** The name, shortened to fit; drawn as text, so that nothing in it is markup. */
function fitted(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  let most = text.slice(0, 60);
  while (most && ctx.measureText(`${most}…`).width > width) most = most.slice(0, -1);
  return `${most}…`;
}

class HeatMap {
  constructor(items, starts, ends, choose) {
    Object.assign(this, { items, starts, ends, choose, rows: Math.min(ROWS, items.length), at: [0, 0], isActive: false });
    this.canvas = make("canvas", { class: "heat", tabindex: "0", role: "img", "aria-label": `Heat map of the drift (PSI) of ${plural(items.length, "feature")} in ${plural(starts.length, "window")}; the table above has the largest values` });
    this.readout = make("p", { class: "readout" }, "Point at a cell, or focus the map and use the arrow keys, to read it. Click or Enter shows the feature's median.");
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("click", (event) => { if (this.point(event)) this.choose(this.items[this.at[0]]); });
    this.canvas.addEventListener("pointerleave", () => { this.isActive = false; this.draw(); });
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    sayWhatIsRead(this.canvas, this.readout);
    this.canvas.addEventListener("blur", () => { this.isActive = false; this.draw(); });
  }

  /** Sizes in pixels of the page: of a row, of the names at its left, of a cell. */
  get sizes() {
    const width = this.canvas.parentElement.clientWidth, names = Math.min(150, Math.round(width / 4));
    return { row: 18, names, width, cell: (width - names) / this.starts.length };
  }

  draw() {
    if (!this.canvas.parentElement) return;
    const { row, names, width, cell } = this.sizes, ratio = window.devicePixelRatio || 1, height = row * this.rows;
    if (!width) return;
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    this.canvas.style.height = `${height}px`;
    const ctx = this.canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    for (let i = 0; i < this.rows; i++) {
      ctx.fillStyle = colour("text");
      ctx.fillText(fitted(ctx, this.items[i].name, names - 10), 0, row * (i + 0.5));
      this.starts.forEach((_, k) => {
        const psi = this.items[i].psi[k];
        ctx.fillStyle = isKnown(psi) ? heat(psi) : colour("page");
        const from = Math.round(names + k * cell), to = Math.round(names + (k + 1) * cell);
        ctx.fillRect(from, row * i, Math.max(1, to - from - (cell > 6 ? 1 : 0)), row - 1);
      });
    }
    if (!this.isActive) return;
    ctx.strokeStyle = colour("text");
    ctx.lineWidth = 2;
    ctx.strokeRect(names + this.at[1] * cell, row * this.at[0], Math.max(3, cell), row - 1);
  }

  read(feature, window) {
    const last = this.starts.length - 1;
    this.at = [Math.max(0, Math.min(this.rows - 1, feature)), Math.max(0, Math.min(last, window))];
    this.isActive = true;
    const one = this.items[this.at[0]], k = this.at[1];
    this.readout.textContent = `${one.name}, ${place(this.starts[k])} to ${place(this.ends[k])}: PSI ${number(one.psi[k])}, median ${number(one.median[k])}, missing ${share(one.missing[k])}`;
    this.draw();
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(), { row, names, cell } = this.sizes;
    const x = event.clientX - box.left - names;
    this.read(Math.floor((event.clientY - box.top) / row), Math.floor(Math.max(0, x) / cell));
    return true;
  }

  press(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (step) this.read(this.at[0] + (this.isActive ? step[0] : 0), this.at[1] + (this.isActive ? step[1] : 0));
    else if (event.key === "Enter") this.choose(this.items[this.at[0]]);
    else return;
    event.preventDefault();
  }
}

function medianPlot(one, starts, ends) {
  const middles = starts.map((x, i) => (x + ends[i]) / 2), values = starts.map((_, i) => one.median[i] ?? null);
  return timePlot({
    label: `Median of ${one.name}`, data: [middles, values], full: [starts[0], lastOf(ends)], y: {}, height: 200,
    describe: (i) => `${place(starts[i])} to ${place(ends[i])}: median ${number(one.median[i])}, PSI ${number(one.psi[i])}, missing ${share(one.missing[i])}`,
    series: [{ stroke: () => colour("c0"), width: 2, points: { show: true, size: 4, fill: () => colour("c0") } }],
  });
}

function showDrift(box) {
  const items = driftItems().sort((a, b) => compare(a.most, b.most, -1)), starts = report.windows?.start ?? [], ends = report.windows?.end ?? [];
  if (!items.some((one) => isKnown(one.most) || has(one.median))) return "Too few records to compare with the first ones, so that drift is not known.";
  const reference = report.drift.reference_records;
  const place = make("div", { id: "feature" });
  const choose = (one, isAsked = true) => {
    const head = make("h3", {}, `Median of ${one.name}`);
    if (!has(one.median) || starts.length < 2) return place.replaceChildren(head, sentence("Its median is known in one window at most."));
    const figure = medianPlot(one, starts, ends);
    place.replaceChildren(head, figure.box);
    const before = redraws.length;
    figure.start();
    // The plot of the feature before is gone, and must not be drawn again.
    if (medianRedraw !== null) redraws.splice(medianRedraw, 1, redraws.pop());
    else medianRedraw = before;
    if (isAsked) place.scrollIntoView({ block: "nearest" });
    return null;
  };
  box.append(sentence(`PSI (population stability index) says how far a window's values are from ${isKnown(reference) ? `the first ${count(reference)} records` : "the first records"}: below ${SOME} there is no drift to speak of, from ${STRONG} on it is strong.`));
  box.append(driftTable(items, starts, choose));
  if (starts.length > 1) addHeatMap(box, new HeatMap(items, starts, ends, choose));
  box.append(place);
  choose(items[0], false);
  return null;
}
let medianRedraw = null; // its place in `redraws`

function addHeatMap(box, map) {
  const scale = make("p", { class: "scale" }, "PSI 0 ", make("span", { class: "heat-scale", "aria-hidden": "true" }), ` ${DEEPEST} and above`);
  const figure = make("div", { class: "figure" }, make("h3", {}, "PSI of each feature over time"), scale, make("div", { class: "canvas" }, map.canvas), map.readout);
  const more = button(`Show all ${count(map.items.length)} features`, () => { map.rows = map.items.length; more.remove(); map.draw(); });
  if (map.items.length > ROWS) figure.append(more);
  box.append(figure);
  map.draw();
  redraws.push(() => map.draw());
  new ResizeObserver(() => map.draw()).observe(map.canvas.parentElement);
}
