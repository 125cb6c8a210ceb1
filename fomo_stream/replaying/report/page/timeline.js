// The scores over time, with alerts, labelled outliers and new contexts; and the metrics of windows over time.

/** The smallest distance between two places: the width of a bin, of which empty ones are left out. */
function binWidth(starts, end) {
  let width = Infinity;
  for (let i = 1; i < starts.length; i++) if (starts[i] > starts[i - 1]) width = Math.min(width, starts[i] - starts[i - 1]);
  return Number.isFinite(width) ? width : Math.max(1, (end ?? 0) - (starts[0] ?? 0));
}

/** Columns in which a gap between two bins has a row of nulls, so that no line is drawn through it. */
function withGaps(starts, width, columns) {
  // Records may be rarer than bins, so a gap is one that is far longer than usual.
  const steps = starts.slice(1).map((start, i) => start - starts[i]).sort((a, b) => a - b);
  const usual = Math.max(width, steps[Math.floor(0.9 * steps.length)] ?? 0);
  const out = [[], ...columns.map(() => [])], bins = [];
  starts.forEach((start, i) => {
    if (i && start - starts[i - 1] > 3 * usual) {
      out[0].push(starts[i - 1] + width);
      for (const column of out.slice(1)) column.push(null);
      bins.push(null);
    }
    out[0].push(start);
    columns.forEach((column, k) => out[k + 1].push(column?.[i] ?? null));
    bins.push(i);
  });
  return { data: out, bins };
}

/** Draws short lines at places of the plot: at its upper or lower edge, or from edge to edge. */
function ticksAt(places, name, { edge, isShown, whole = false }) {
  return (plot) => {
    if (!isShown()) return;
    const { ctx, bbox } = plot, ratio = uPlot.pxRatio, long = whole ? bbox.height : 9 * ratio;
    const from = edge === "top" ? bbox.top : bbox.top + bbox.height - long;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = ratio * (whole ? 1.5 : 1);
    if (whole) ctx.setLineDash([5 * ratio, 4 * ratio]);
    ctx.beginPath();
    let last = -Infinity;
    for (const at of places) {
      const x = Math.round(plot.valToPos(at, "x", true));
      if (x === last || x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue; // thousands on one pixel are one
      ctx.moveTo(x, from);
      ctx.lineTo(x, from + long);
      last = x;
    }
    ctx.stroke();
    ctx.restore();
  };
}

/** Shades the spans [from, to] from edge to edge, each at least a few pixels wide. */
function shaded(spans, name, { isShown }) {
  return (plot) => {
    if (!isShown()) return;
    const { ctx, bbox } = plot, least = 3 * uPlot.pxRatio;
    ctx.save();
    ctx.globalAlpha = 0.25;
    ctx.fillStyle = colour(name);
    for (const [from, to] of spans) {
      const [a, b] = [from, to].map((x) => plot.valToPos(x, "x", true)), left = Math.max(bbox.left, Math.min(a, (a + b - least) / 2));
      const right = Math.min(bbox.left + bbox.width, Math.max(b, (a + b + least) / 2));
      if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    }
    ctx.restore();
  };
}

let showInTimeline = null; // (from, to): zooms the timeline there, once it is on the page

function timelineSummary(line, middle) {
  const top = highest(line.max), at = line.start[line.max.indexOf(top)], outliers = known(line.outliers).filter((n) => n > 0);
  const alerts = known(line.alerts), total = alerts.reduce((a, b) => a + b, 0);
  const parts = [`Scores in ${plural(line.start.length, "bin")} of ${plural(highest(line.records) ?? 0, "record")} at most.`];
  if (isKnown(top)) parts.push(`The highest score, ${number(top)}, is at ${place(at)}${isTimed ? " UTC" : ""}.`);
  if (has(middle)) parts.push(`The ${line.median ? "median" : "mean"} of a bin is between ${number(lowest(middle))} and ${number(highest(middle))}.`);
  parts.push(`${plural(total, "alert")} in ${plural(alerts.filter((n) => n > 0).length, "bin")}.`);
  if (line.outliers) parts.push(`Labelled outliers in ${plural(outliers.length, "bin")}.`);
  return parts.join(" ");
}

/** What the timeline says about bin k. */
function binInWords(line, middle, width, k) {
  if (!isKnown(k)) return "No records here.";
  const from = line.start[k];
  const found = [`${place(from)} to ${place(from + width)}${isTimed ? " UTC" : ""}: ${plural(line.records?.[k] ?? 0, "record")}`, `highest score ${number(line.max[k])}`];
  if (isKnown(middle?.[k])) found.push(`${line.median ? "median" : "mean"} ${number(middle[k])}`);
  found.push(plural(line.alerts?.[k] ?? 0, "alert"));
  if (line.outliers) found.push(plural(line.outliers[k] ?? 0, "labelled outlier"));
  return found.join(", ");
}

function timelineSeries(bins) {
  return [
    { stroke: () => colour("c0"), fill: () => colour("fill"), width: 1.25, points: { show: bins < 60, size: 4 } },
    { stroke: () => colour("quiet"), width: 1.25, points: { show: bins < 2, size: 4 } },
    { stroke: () => colour("bad"), paths: () => null, points: { show: true, size: 6, width: 0, fill: () => colour("bad") } },
  ];
}

/** What can be shown and hidden: series of the plot, and ticks that are drawn over it. */
function timelineLayers(line, at) {
  const odd = at.filter((x, i) => line.outliers?.[i] > 0), layers = [
    { name: "highest score", colour: "c0", series: 1 }, { name: line.median ? "median" : "mean", colour: "quiet", series: 2 },
    { name: "alerts", colour: "bad", kind: "dot", series: 3 },
  ];
  const over = (name, colour, kind, places, how, drawing) => {
    if (!places.length) return;
    const layer = { name, colour, kind, isShown: true };
    layer.draw = drawing(places, colour, { ...how, isShown: () => layer.isShown });
    layers.push(layer);
  };
  const ticks = (name, colour, places, how) => over(name, colour, "tick", places, how, ticksAt);
  const spans = (report.incidents?.worst ?? []).filter((one) => isKnown(one.begin)).map((one) => [one.begin, one.end]);
  over("worst incidents", "odd", "span", spans, {}, shaded);
  ticks("labelled outliers", "odd", odd, { edge: "bottom" });
  return layers;
}

function showTimeline(box) {
  const line = report.timeline;
  if (!line?.start?.length || !has(line.max)) return "No record of this range has a score, so that there is nothing to draw.";
  const middle = line.median ?? line.mean, start = line.start, width = line.width || binWidth(start, report.windows?.end?.at(-1));
  const at = start.map((x) => x + width / 2), alerting = line.max.map((top, i) => (line.alerts?.[i] > 0 ? top : null));
  const { data, bins } = withGaps(at, width, [line.max, middle, alerting]), layers = timelineLayers(line, at);
  const figure = timePlot({
    label: "Scores over time", summary: timelineSummary(line, middle), data, full: [start[0], lastOf(start) + width], y: {}, height: 240,
    describe: (i) => binInWords(line, middle, width, bins[i]), series: timelineSeries(start.length), layers: known(layers.map((one) => one.draw)),
  });
  let plot = null;
  box.append(legend("What the timeline shows", layers, (i, isShown) => {
    if (layers[i].series) return plot.setSeries(layers[i].series, { show: isShown });
    layers[i].isShown = isShown;
    return plot.redraw(false);
  }), figure.box);
  plot = figure.start();
  showInTimeline = (from, to) => {
    const room = Math.max(20 * width, 2 * (to - from));
    figure.zoom(from - room, to + room);
    byId("timeline").scrollIntoView({ block: "start" });
    byId("timeline").querySelector(".plot").focus({ preventScroll: true });
  };
  return null;
}
