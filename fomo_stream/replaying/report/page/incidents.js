// The answer on the first screen: the worst incidents, what they were, and the result in words.

const FIRST = 5, FEW = 3, MISSED = 3; // shown before all are asked for; so few more are shown, too
const KINDS_OF_SEVERITY = { critical: "bad", warning: "wait" };
const severityMark = (severity) => (severity ? mark(KINDS_OF_SEVERITY[severity] ?? "none", severity) : NONE);

const WIDTH = 240, HEIGHT = 60; // of a small picture, in units of its own

/** A line of values over places, with the usual range as a band, and dots. data: {x, value, range, alert, worst}. */
function smallPicture({ x, value, range, alert = [], worst = null, expected = null }, label) {
  const all = [...known([...value, expected]), ...(range ?? [])], low = lowest(all), high = highest(all), first = x[0], wide = lastOf(x) - first;
  const toX = (i) => (wide ? 4 + ((x[i] - first) / wide) * (WIDTH - 8) : WIDTH / 2);
  const toY = (y) => HEIGHT - 5 - (high > low ? (y - low) / (high - low) : 0.5) * (HEIGHT - 10);
  const at = (i) => `${toX(i).toFixed(1)} ${toY(value[i]).toFixed(1)}`;
  const picture = draw("svg", { class: "small", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  if (range) picture.append(draw("rect", { class: "usual", x: 0, width: WIDTH, y: toY(range[1]).toFixed(1), height: Math.max(1, toY(range[0]) - toY(range[1])).toFixed(1) }));
  const path = value.map((y, i) => (isKnown(y) ? `${i && isKnown(value[i - 1]) ? "L" : "M"}${at(i)}` : "")).join("");
  picture.append(draw("path", { class: "line", d: path }));
  const dot = (i, name, r) => { if (isKnown(value[i])) picture.append(draw("circle", { class: name, cx: toX(i).toFixed(1), cy: toY(value[i]).toFixed(1), r })); };
  for (const i of alert) dot(i, "alert", 2);
  if (isKnown(worst)) dot(worst, "worst", 4);
  if (isKnown(worst) && isKnown(expected)) picture.append(draw("path", { class: "expected", d: `M${(toX(worst) - 7).toFixed(1)} ${toY(expected).toFixed(1)}h14` }));
  return picture;
}

function incidentPicture(one) {
  const now = one.value[one.worst], usual = one.range ? `usual ${number(one.range[0])} to ${number(one.range[1])}` : "";
  const fits = isKnown(one.expected) ? `expected ${number(one.expected)}` : "";
  const said = [`${one.feature} ${isKnown(now) ? number(now) : "missing"}`, fits, usual].filter(Boolean).join(", ");
  return make("figure", {}, smallPicture(one, `${said}; the records around the incident`), make("figcaption", {}, said));
}

/** How long an incident lasted, in words. */
function lasted(one) {
  const alerts = plural(one.records, "alert");
  if (isTimed && isKnown(one.begin)) return `${one.end > one.begin ? `${duration((one.end - one.begin) / 1000)}, ` : ""}${alerts}`;
  const records = one.last - one.first + 1;
  return records > one.records ? `${plural(records, "record")}, ${alerts}` : alerts;
}

function incidentCard(one) {
  const head = make("h3", {}, isKnown(one.begin) ? placeButton(one.begin, one.end, isTimed ? place(one.begin) : `Record ${count(one.begin)}`) : `offset ${count(one.first)}`);
  const marks = make("p", { class: "marks" }, severityMark(one.severity));
  if (one.key) marks.append(make("span", { class: "key" }, one.key));
  if (isKnown(one.outliers)) marks.append(one.outliers ? mark("good", "labelled fault") : mark("none", "no labelled fault"));
  const where = `${known([isKnown(source.partitions) && source.partitions > 1 ? `partition ${one.partition}` : null, `${one.first === one.last ? "offset" : "offsets"} ${one.first === one.last ? count(one.first) : `${count(one.first)} to ${count(one.last)}`}`]).join(", ")}`;
  return make("li", { class: "incident" },
    make("div", { class: "when" }, head, make("p", { class: "note" }, lasted(one)), marks),
    make("div", { class: "why" }, make("p", { class: "said" }, one.explanation ?? `Highest score ${number(one.score)}; no reasons were asked for.`), isTimed ? make("p", { class: "note" }, where) : ""),
    make("div", { class: "pictures" }, ...(one.pictures ?? []).filter((picture) => has(picture.value)).map(incidentPicture)));
}

/** The facts of the range in one sentence or two. */
function answer() {
  const incidents = report.incidents ?? {}, counts = detectors[0]?.counts ?? {}, span = isKnown(source.from_ms) ? (source.to_ms - source.from_ms) / DAY : 0;
  if (!source.scored) return "No record of this range has a score.";
  const often = span >= 2 && incidents.count ? `, about ${Number((incidents.count / span).toPrecision(2))} a day` : "";
  const said = [`${incidents.count ? plural(incidents.count, "incident") : "No incident"} in ${plural(source.records ?? 0, "record")}${often}.`];
  const judged = (counts.true_incidents ?? 0) + (counts.false_incidents ?? 0), precision = metric("incident_precision")(detectors[0] ?? {}), recall = metric("segments_detected")(detectors[0] ?? {});
  if (isKnown(precision)) said.push(`Precision ${share(precision)}: ${count(counts.true_incidents)} of ${judged < counts.incidents ? `${count(judged)} that have labels` : count(judged)} with a labelled fault.`);
  if (isKnown(recall)) said.push(`Recall ${share(recall)}: ${count(counts.segments_detected)} of ${plural(counts.segments, "labelled fault")} found.`);
  if (incidents.count > 1) said.push("The most surprising come first: long and rare ones.");
  return said.join(" ");
}

/** Items in a list; those after the first ones are shown by a button. */
function shortList(items, kind, first, name) {
  const list = make("ol", { class: kind }, ...items), rest = items.length > first + FEW ? items.slice(first) : [];
  const show = (isShown) => { for (const one of rest) one.hidden = !isShown; };
  if (!rest.length) return [list];
  show(false);
  const more = button(`Show all ${count(items.length)} ${name}`, () => { show(true); more.remove(); rest[0].querySelector("button")?.focus(); }, { class: "more" });
  return [list, more];
}

function missedFaults() {
  const missed = (report.segments ?? []).filter((one) => one.detected === false).sort((a, b) => b.records - a.records);
  if (!missed.length) return [];
  const items = missed.map((one) => make("li", {}, placeButton(one.start, one.end, isTimed ? place(one.start) : `Record ${count(one.start)}`), `${one.key ? ` ${one.key}` : ""}: ${plural(one.records, "record")}, highest score ${isKnown(one.peak) ? one.peak.toFixed(3) : NONE}`));
  return [make("h3", {}, `${plural(missed.length, "labelled fault")} missed, the longest first`), ...shortList(items, "missed words", MISSED, "missed faults")];
}

function showAnswer(box) {
  box.append(make("p", { class: "answer" }, answer()));
  const worst = report.incidents?.worst ?? [];
  if (worst.length) box.append(...shortList(worst.map(incidentCard), "incidents", FIRST, report.incidents.count > worst.length ? "of the worst incidents" : "incidents"));
  box.append(...missedFaults());
  return null;
}

/** What the numbers say in sentences, and commands to try, side by side. */
function showWords(box) {
  const words = (report.summary ?? []).map((text) => make("li", {}, text));
  if (!words.length) return "Nothing was measured.";
  box.append(make("ul", { class: "words" }, ...words));
  return null;
}
