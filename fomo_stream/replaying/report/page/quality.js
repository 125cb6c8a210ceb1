// How well the detectors rank and how well their p-values keep what they promise.

function showCurves(box) {
  const able = detectors.filter((one) => has(one.curves?.roc?.[0]));
  if (!able.length) return "ROC and precision-recall curves need labels of both kinds, and this replay has none.";
  const lines = (name) => able.map((one) => ({
    name: one.name, xs: one.curves[name]?.[0] ?? [], ys: one.curves[name]?.[1] ?? [], ...styleOf(one),
  }));
  const said = (key, word) => `${word}: ${able.map((one) => `${one.name} ${decimals(metric(key)(one))}`).join(", ")}.`;
  const roc = curves({
    label: "ROC curves", title: "ROC curve", x: fraction("False positive rate"), y: fraction("True positive rate"),
    lines: lines("roc"), diagonal: true, summary: said("auroc", "Area under the curve"),
  });
  const pr = curves({
    label: "Precision-recall curves", title: "Precision-recall curve", x: fraction("Recall"), y: fraction("Precision"),
    lines: lines("pr"), summary: said("average_precision", "Average precision"),
  });
  box.append(detectorLegend((i, isShown) => { roc.show(i, isShown); pr.show(i, isShown); }, able), make("div", { class: "pair" }, roc.box, pr.box));
  return null;
}
function styleOf(one) {
  const i = detectors.indexOf(one);
  return { colour: lineColour(i), dash: dashes(i), width: i ? 1.75 : 2.5 };
}

function calibrationSummary(able, key) {
  const at = 0.01, words = able.map((one) => {
    const found = valueAt({ xs: one.calibration.requested, ys: one.calibration[key] }, at);
    return isKnown(found) ? `${one.name} ${share(found)}` : null;
  });
  return known(words).length ? `Where ${share(at)} of records is requested, this share has a p-value as small: ${known(words).join(", ")}.` : "";
}

function showCalibration(box) {
  const able = detectors.filter((one) => has(one.calibration?.requested) && has(one.calibration?.realised));
  if (!able.length) return "No record of this range has a p-value yet: they begin when enough scores are known.";
  const x = able.flatMap((one) => known(one.calibration.requested)).filter((v) => v > 0);
  const kinds = [["realised", "all records"], ["of_inliers", "labelled normal records"]].filter(([key]) => able.some((one) => has(one.calibration[key])));
  const place = make("div");
  const hidden = new Set();
  const show = (key) => {
    const of = able.filter((one) => has(one.calibration[key])), y = of.flatMap((one) => known(one.calibration[key])).filter((v) => v > 0);
    const lines = of.map((one) => ({ name: one.name, xs: one.calibration.requested, ys: one.calibration[key], ...styleOf(one) }));
    const plot = curves({
      label: "Requested against realised alert rate", x: decades("Requested", lowest(x), highest(x)),
      y: decades("Realised", Math.min(lowest(x), lowest(y) ?? 1), 1), lines, diagonal: true, summary: calibrationSummary(of, key),
    });
    of.forEach((one, i) => plot.show(i, !hidden.has(one.name)));
    shown = { plot, of };
    place.replaceChildren(plot.box);
  };
  let shown = null;
  if (kinds.length > 1) box.append(make("div", { class: "bar" }, choice("Share of", kinds, show)));
  box.append(detectorLegend((i, isShown) => {
    hidden[isShown ? "delete" : "add"](able[i].name);
    const at = shown.of.indexOf(able[i]);
    if (at >= 0) shown.plot.show(at, isShown);
  }, able), sentence("On the dashed line, as many records have a p-value below a threshold as the threshold asks for. Above it there are more such records than requested; outliers raise the share of all records. fomo-stream does not alert by its p-values: they only say how rare a record was at its time."), place);
  show(kinds[0][0]);
  return null;
}

/** A histogram as an outline: density, so that bins may differ in width. Bins without an end are left out. */
function outline(edges, counts) {
  const total = known(counts).reduce((a, b) => a + b, 0), xs = [], ys = [];
  counts.forEach((n, i) => {
    if (!isKnown(edges[i]) || !isKnown(edges[i + 1]) || edges[i + 1] <= edges[i]) return;
    const height = total ? (n ?? 0) / total / (edges[i + 1] - edges[i]) : 0;
    xs.push(edges[i], edges[i + 1]);
    ys.push(height, height);
  });
  return { xs: xs.length ? [xs[0], ...xs, lastOf(xs)] : [], ys: ys.length ? [0, ...ys, 0] : [], total };
}

/** The bins between which all but a few of 100,000 records are: a single far score must not squeeze the rest. */
function histogramOf(found) {
  const { edges, counts, outliers } = found;
  if (!has(outliers)) return [{ name: "all records", colour: "c0", fill: true, ...outline(edges, counts) }];
  const normal = counts.map((n, i) => Math.max(0, (n ?? 0) - (outliers[i] ?? 0)));
  return [
    { name: "labelled outliers", colour: "odd", fill: true, ...outline(edges, outliers) },
    { name: "other records", colour: "c0", fill: true, ...outline(edges, normal) },
  ];
}

function showDistribution(box) {
  const able = detectors.filter((one) => has(one.distribution?.edges) && highest(one.distribution.counts) > 0);
  if (!able.length) return "No record of this range has a score.";
  const place = make("div", { class: "body" });
  const show = (one) => {
    const lines = histogramOf(one.distribution).filter((line) => line.total && line.xs.length);
    if (!lines.length) return place.replaceChildren(sentence("All scores are the same."));
    const xs = lines.flatMap((line) => line.xs), top = highest(lines.flatMap((line) => line.ys)) || 1, min = lowest(xs), max = highest(xs);
    const plot = curves({
      label: `Distribution of the scores of ${one.name}`, lines,
      x: { name: "Score", min, max, ticks: roundTicks(min, max), text: number },
      y: { name: "Share of its class, by unit", min: 0, max: 1.05 * top, ticks: roundTicks(0, 1.05 * top, 5), text: number },
      summary: `Scores from ${number(min)} to ${number(max)}: ${list(lines.map((line) => `${count(line.total)} ${line.name}`))}. Each class has an area of 1.`,
    });
    return place.replaceChildren(legend("Classes", lines, (i, isShown) => plot.show(i, isShown)), plot.box);
  };
  if (able.length > 1) box.append(make("div", { class: "bar" }, choice("Detector", able.map((one) => [one, one.name]), show)));
  box.append(place);
  show(able[0]);
  return null;
}
