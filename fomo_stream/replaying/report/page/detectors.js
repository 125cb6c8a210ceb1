// The heading of the page, its notes, and the table of detectors.

const detectors = report.detectors ?? [];
const hasLabels = detectors.some((one) => isKnown(one.metrics?.auroc?.value));
const metric = (name) => (one) => own(one.metrics, name)?.value ?? null;
const RANKED_BY = "auroc"; // with labels; without, the detectors stay in their order

function ranked() {
  const value = metric(RANKED_BY);
  return detectors.map((one, i) => ({ ...one, i })).sort((a, b) => compare(value(a), value(b), -1) || a.i - b.i);
}

function showHeader() {
  const name = String(source.name ?? "records");
  document.title = `Replay of ${name} · fomo-stream`;
  byId("title").textContent = `Replay of ${name}`;
  const range = isKnown(source.from_ms) ? `${moment(source.from_ms)} to ${moment(source.to_ms)} UTC` : null;
  const parts = [range, isKnown(source.records) ? plural(source.records, "record") : null,
    isKnown(source.partitions) && source.kind === "topic" ? plural(source.partitions, "partition") : null];
  byId("range").textContent = known(parts).join(" · ");
  byId("footer").textContent = `fomo-stream ${own(report.versions, "fomo_stream") ?? ""} · nothing in this file is loaded from elsewhere · times are in UTC`;
}

function showNotes(box) {
  if (!has(report.notes)) return "There are no notes.";
  box.append(make("ul", { class: "words" }, ...report.notes.map((note) => make("li", {}, note))));
  return null;
}

const interval = (found) => (isKnown(found?.low) && isKnown(found?.high) ? [found.low, found.high] : null);

const METRICS = [
  ["AUROC", "auroc", decimals, "probability that an outlier scores higher than a normal record; 0.5 is chance, 1 is perfect"],
  ["AUPR", "average_precision", decimals, "average precision: mean precision over all outliers, from the highest score down; chance is the share of outliers"],
  ["Precision by incident", "incident_precision", paddedShare, "share of the incidents with labels that have a labelled outlier in them"],
  ["Recall by incident", "segments_detected", paddedShare, "share of the labelled faults, which are runs of outliers, with at least one alert"],
  ["False incidents in 10,000", "false_incidents", padded, "incidents without any labelled outlier, in 10,000 normal records"],
  ["Alert rate", "alert_rate", paddedShare, "share of records that raised an alert"],
  ["Precision by alert", "alert_precision", paddedShare, "share of alerts that are outliers"],
  ["Recall by record", "alert_recall", paddedShare, "share of outliers that raised an alert"],
  ["Delay", "delay_records", number, "records from the start of a segment to its first alert; median over detected segments"],
  ["Delay in time", "delay_s", duration, "the same in time"],
];

function withInterval(name, as) {
  return (one) => {
    const found = own(one.metrics, name), range = interval(found);
    if (!found) return NONE;
    return range ? [as(found.value), make("span", { class: "interval" }, `${as(range[0])} – ${as(range[1])}`)] : as(found.value);
  };
}
const KINDS = { own: "this detector", variant: "other settings", rival: "" };
function nameOf(one) {
  const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.setProperty("--swatch", `var(--${lineColour(one.i)})`);
  const kind = KINDS[one.kind] ?? "";
  return [swatch, one.name, ...(kind ? [" ", make("small", {}, kind)] : [])];
}

function showDetectors(box) {
  if (!detectors.length) return "The report has no detectors.";
  const items = ranked(), isTimedDelay = detectors.some((one) => isKnown(metric("delay_s")(one)));
  const columns = [
    { name: "Detector", of: (one) => one.name, node: nameOf, head: true, kind: "text name" },
    ...METRICS.filter(([, key]) => key !== "delay_records" || !isTimedDelay).map(([name, key, as, title]) => ({ name, title, of: metric(key), node: withInterval(key, as), optional: true })),
    { name: "Alerts", of: (one) => one.counts?.alerts, as: count, optional: true },
    { name: "Incidents", of: (one) => one.counts?.incidents, as: count, optional: true, title: "how often somebody would have been called" },
  ];
  const shown = METRICS.filter(([, key]) => detectors.some((one) => isKnown(metric(key)(one))));
  box.append(table("detectors-table", "Detectors", items, columns, {
    start: hasLabels ? { by: "AUROC", down: true } : null,
    row: (node, one) => { if (one.kind === "own") node.className = "own"; },
  }));
  if (!hasLabels) box.append(sentence("There are no labels, so that only the alerts are counted: how good they are is not known."));
  else box.append(sentence("Small numbers are 95 % intervals. Ranked by AUROC, on the records that all of them scored."));
  if (shown.length) box.append(make("details", {}, make("summary", {}, "What the numbers mean"), facts(shown.map(([name, , , text]) => [name, text]))));
  return null;
}
