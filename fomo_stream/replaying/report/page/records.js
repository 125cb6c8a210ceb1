// Labelled faults, throughput, the highest alerts, silence, and how the report came to be.

/** A place in a table, which shows itself in the timeline. */
function placeButton(from, to, name = place(from)) {
  if (!isKnown(from) || !has(report.timeline?.max)) return name;
  return button(name, () => showInTimeline(from, to ?? from), { class: "link", title: "Show in the timeline" });
}

function showSegments(box) {
  const segments = report.segments ?? [], total = detectors[0]?.counts?.segments ?? segments.length, found = detectors[0]?.counts?.segments_detected;
  if (!segments.length) return hasLabels ? "No record of this range is labelled as an outlier." : "Segments are runs of labelled outliers, and this replay has no labels.";
  box.append(sentence(`${plural(total, "run")} of labelled outliers${isKnown(found) ? `, of which ${count(found)} raised an alert` : ""}.${total > segments.length ? ` The first ${count(segments.length)} are listed.` : ""}`));
  box.append(table("segments-table", "Labelled faults", segments, [
    { name: isTimed ? "Start (UTC)" : "Start", of: (one) => one.start, node: (one) => placeButton(one.start, one.end), head: true },
    { name: "Key", kind: "text key-cell", of: (one) => one.key, as: (x) => x ?? NONE, optional: true },
    ...(source.partitions > 1 ? [{ name: "Partition", of: (one) => one.partition, as: count }] : []),
    { name: isTimed ? "End (UTC)" : "End", of: (one) => one.end, as: place },
    { name: "Offsets", of: (one) => one.from, node: (one) => (one.from === one.to ? count(one.from) : `${count(one.from)} to ${count(one.to)}`) },
    { name: "Records", of: (one) => one.records, as: count },
    { name: "Detected", kind: "text", of: (one) => (isKnown(one.detected) ? Number(one.detected) : null), node: (one) => (isKnown(one.detected) ? mark(one.detected ? "good" : "none", one.detected ? "yes" : "no") : NONE) },
    { name: "Delay, records", of: (one) => one.delay_records, as: count, optional: true },
    { name: "Delay", of: (one) => one.delay_s, as: duration, optional: true },
    { name: "Highest score", of: (one) => one.peak, optional: true },
  ]));
  return null;
}

function showThroughput(box) {
  const seconds = detectors.map((one) => ({ name: one.name, seconds: own(timing.detectors, one.name), each: own(timing.seconds_per_record, one.name) }));
  if (!known(Object.values(timing)).length) return "No times were measured.";
  box.append(facts([
    ["Started", timing.started ? String(timing.started).replace("T", " ").replace("Z", " UTC") : null], ["Took", duration(timing.seconds)],
    ["Throughput", isKnown(timing.records_per_s) ? `${count(timing.records_per_s)} records/s` : null],
    ["Spent in the detector", share(timing.detector_share)],
  ]));
  if (seconds.filter((one) => isKnown(one.seconds)).length > 1) {
    box.append(table("times-table", "Time of each detector", seconds, [
      { name: "Detector", kind: "text name", head: true, of: (one) => one.name, as: String }, { name: "Time", of: (one) => one.seconds, as: duration },
      { name: "By record", of: (one) => one.each, as: duration, optional: true },
    ]));
  }
  return null;
}

function recordCell(one) {
  const text = String(one.record ?? ""), short = text.replace(/\s+/g, " ").slice(0, one.explanation ? 30 : 60);
  if (!text) return NONE;
  return make("details", {}, make("summary", {}, short + (short.length < text.trim().length ? "…" : "")), make("pre", {}, text));
}

function showAlerts(box) {
  const alerts = report.alerts ?? [];
  if (!alerts.length) return "There were no alerts in this range.";
  const labels = { 1: "outlier", 0: "normal" }, grade = { critical: 2, warning: 1 };
  const view = table("alerts-table", "Highest alerts", alerts, [
    { name: PLACE, of: (one) => one.time, node: (one) => placeButton(one.time), head: true },
    { name: "Severity", kind: "text", of: (one) => grade[one.severity] ?? null, node: (one) => severityMark(one.severity) },
    { name: "Reasons", kind: "text long", of: (one) => one.explanation, as: (x) => x ?? NONE, optional: true },
    { name: "Label", kind: "text", of: (one) => one.label, as: (x) => labels[x] ?? "unknown", optional: true },
    { name: "Score", of: (one) => one.score, as: (x) => (isKnown(x) ? x.toFixed(4) : NONE) }, { name: "p-value", of: (one) => one.p_value, as: number },
    ...(isTimed ? [{ name: "Offset", of: (one) => one.offset, as: count }] : []), ...(source.partitions > 1 ? [{ name: "Partition", of: (one) => one.partition, as: count }] : []),
    { name: "Contents", kind: "text long", of: (one) => one.record, node: recordCell },
  ]);
  const open = (isOpen) => { for (const one of view.querySelectorAll("details")) one.open = isOpen; };
  box.append(sentence(`The highest alert of ${plural(alerts.length, "incident")}, by its score.`));
  box.append(make("div", { class: "bar" }, button("Show all records", () => open(true)), button("Hide all records", () => open(false))), view);
  return null;
}

function showKeys(box) {
  if (!has(report.keys)) return "No alert is of a record with a key.";
  box.append(table("keys-table", "Keys that alert most", report.keys, [
    { name: "Key", kind: "text name", head: true, of: (one) => one.key, as: String }, { name: "Alerts", of: (one) => one.alerts, as: count },
    { name: "Share of alerts", of: (one) => one.share, as: share }, { name: "Highest score", of: (one) => one.highest?.score, as: (x) => (isKnown(x) ? x.toFixed(4) : NONE) },
    { name: PLACE, of: (one) => one.highest?.time, node: (one) => placeButton(one.highest?.time) },
  ]));
  return null;
}

function showReasons(box) {
  if (!has(report.reasons)) return "No alert has a reason.";
  const whole = highest([detectors[0]?.counts?.alerts, 1]);
  box.append(table("reasons-table", "Features that are most often the first reason", report.reasons, [
    { name: "Feature", kind: "text name", head: true, of: (one) => one.feature, as: String }, { name: "Alerts", of: (one) => one.alerts, as: count },
    { name: "Share of alerts", of: (one) => one.alerts / whole, as: share },
  ]));
  return null;
}

function showSilence(box) {
  const told = report.silence?.told ?? [];
  if (!told.length) return "Nothing was silent.";
  box.append(table("silence-table", "Silence", told, [
    { name: "Last record before", of: (one) => one.from?.timestamp, node: (one) => placeButton(one.from?.timestamp), head: true },
    { name: "Of", kind: "text", of: (one) => one.of, as: String }, { name: "Key", kind: "text key-cell", of: (one) => one.key, as: (x) => x ?? NONE, optional: true },
    { name: "What", kind: "text long", of: (one) => one.explanation ?? one.status, as: String },
    { name: "Quiet for", of: (one) => one.quiet_s, as: duration, optional: true }, { name: "Usual gap", of: (one) => one.usual_gap_s, as: duration, optional: true },
  ]));
  return null;
}

function written(value) {
  if (Array.isArray(value)) return value.map(written).join(", ") || null;
  return typeof value === "string" || !isKnown(value) ? value : JSON.stringify(value);
}
function showOrigin(box) {
  const rows = (object) => Object.entries(object ?? {}).map(([name, value]) => ({ name: name.replace(/_$/, ""), value: written(value) })).filter((one) => isKnown(one.value));
  const two = (id, title, object) => make("div", {}, make("h3", {}, title), table(id, title, rows(object), [
    { name: title === "Settings" ? "Setting" : "Part", kind: "text name", head: true, of: (one) => one.name, as: String }, { name: "Value", kind: "text long", of: (one) => one.value, as: String },
  ]));
  box.append(make("div", { class: "pair" }, two("settings-table", "Settings", report.settings), two("versions-table", "Versions", report.versions)));
  if (has(source.features)) box.append(make("details", {}, make("summary", {}, plural(source.features.length, "feature")), sentence(source.features.join(", "))));
  return null;
}
