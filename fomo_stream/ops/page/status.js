"use strict";
// Asks for status.json every 2 s while the page is visible. Text from the service is only ever set as text.

const EVERY_MS = 2000, PATIENCE_MS = 5000;
const byId = (id) => document.getElementById(id);

// --- numbers as text

const NONE = "–";
const number = (x, digits = 0) =>
  x == null ? NONE : x.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: 0 });
const rate = (x) => number(x, x < 10 ? 1 : 0);
function duration(s) {
  if (s == null) return NONE;
  if (s < 0.9995) return `${number(1000 * s, s < 0.00995 ? 1 : 0)} ms`;
  if (s < 59.5) return `${number(s, s < 9.95 ? 1 : 0)} s`;
  if (s < 3570) return `${number(s / 60, s < 595 ? 1 : 0)} min`;
  if (s < 172000) return `${number(s / 3600, s < 36000 ? 1 : 0)} h`;
  return `${number(s / 86400)} days`;
}
const age = (s) => (s === 0 ? "none" : duration(s));
function share(x) {
  return x == null ? NONE : `${number(100 * x, x < 0.001 ? 3 : x < 0.1 ? 2 : 1)} %`;
}
function moment(seconds) {
  const at = new Date(1000 * seconds), two = (n) => String(n).padStart(2, "0");
  const time = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

// --- elements

function put(node, text) {
  if (typeof node === "string") node = byId(node);
  text = String(text);
  if (node.textContent !== text) node.textContent = text;
}
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function mark(kind, word) {
  const sign = { good: "●", wait: "◌", bad: "▲", warn: "△" }[kind];
  const node = make("span", { class: "mark", "data-kind": kind === "warn" ? "wait" : kind });
  node.append(make("span", { "aria-hidden": "true" }, sign), word);
  return node;
}

// Rows that are there already stay, so that a selection or an open row survives.
function fill(body, items, keyOf, columns) {
  const rows = new Map([...body.children].map((row) => [row.dataset.key, row]));
  let last = null;
  for (const item of items) {
    const key = keyOf(item);
    let row = rows.get(key);
    rows.delete(key);
    if (!row) {
      row = make("tr", { "data-key": key });
      for (const column of columns) {
        const attributes = column.kind ? { class: column.kind } : {};
        attributes["data-name"] = column.name;
        row.append(column.head ? make("th", { scope: "row", ...attributes }) : make("td", attributes));
      }
    }
    columns.forEach((column, i) => {
      const cell = row.children[i], shown = column.show(item);
      if (typeof shown === "string") put(cell, shown);
      else if (cell.dataset.shown !== shown.key) {
        cell.dataset.shown = shown.key;
        cell.replaceChildren(...shown.nodes());
      }
    });
    const place = last ? last.nextSibling : body.firstChild;
    if (place !== row) body.insertBefore(row, place);
    last = row;
  }
  for (const row of rows.values()) row.remove();
}

// --- partitions

function partitionState(partition) {
  const [topic, seconds] = partition.open_transactions.reduce((a, b) => (b[1] > a[1] ? b : a), ["", 0]);
  let kind = "good", word = "scoring", more = "";
  if (partition.waits) [kind, word, more] = ["wait", "waiting", partition.waits];
  else if (seconds >= 10) [kind, word, more] = ["warn", "blocked", `a transaction in ${topic} is open for ${duration(seconds)}`];
  else if (partition.context_late_s >= 2) [kind, word, more] = ["warn", "late", `its next context is not built yet, for ${duration(partition.context_late_s)}`];
  else if (!partition.generation) [kind, word, more] = ["wait", "warming up", "too few rows for a context"];
  return {
    key: `${word} ${more}`,
    nodes: () => [mark(kind, word), ...(more ? [make("span", { class: "more" }, more)] : [])],
  };
}
/** The highest score by step as a line from 0 to 1, with a dot where there were alerts. */
function partitionChart({ chart: { score, alerts, step_s } }) {
  const x = (i) => (2 + (136 * i) / (score.length - 1)).toFixed(1), y = (value) => (27 - 24 * value).toFixed(1);
  const path = score.map((value, i) => (value == null ? "" : `${score[i - 1] == null ? "M" : "L"}${x(i)} ${y(value)}h0`)).join("");
  const count = total(alerts), highest = Math.max(0, ...score.filter((value) => value != null));
  const label = path ? `Highest score ${highest.toFixed(4)} and ${number(count)} alerts in ${(score.length * step_s) / 60} minutes` : "No scores yet";
  const dots = () => score.flatMap((value, i) => (alerts[i] ? [draw("circle", { cx: x(i), cy: y(value), r: 2.5 })] : []));
  return { key: `${path} ${alerts}`, nodes: () => [draw("svg", { viewBox: "0 0 140 30", role: "img", "aria-label": label }, draw("path", { d: path }), ...dots())] };
}
const PARTITIONS = [
  { name: "Partition", head: true, kind: "text", show: (p) => String(p.number), order: (p) => p.number },
  { name: "State", kind: "text long", show: partitionState, order: (p) => (p.waits ? 2 : p.generation ? 0 : 1) },
  { name: "Scores, 10 minutes", kind: "chart", show: partitionChart, order: (p) => total(p.chart.alerts) },
  { name: "Lag", show: (p) => number(p.lag), order: (p) => p.lag },
  { name: "Oldest unscored", show: (p) => age(p.oldest_unscored_s), order: (p) => p.oldest_unscored_s },
  { name: "Position", show: (p) => number(p.position), order: (p) => p.position },
  { name: "Context rows", show: (p) => number(p.context_rows), order: (p) => p.context_rows },
  { name: "Generation", show: (p) => number(p.generation), order: (p) => p.generation },
  { name: "Records since context", show: (p) => number(p.generation_age), order: (p) => p.generation_age },
  { name: "Drift", show: (p) => share(p.drift), order: (p) => p.drift },
];
let sorted = { by: 0, down: false }, latest = null;

function showPartitions(partitions) {
  const { order } = PARTITIONS[sorted.by], sign = sorted.down ? -1 : 1;
  const value = (p) => order(p) ?? -1;
  const items = [...partitions].sort((a, b) => sign * (value(a) - value(b)) || a.number - b.number);
  fill(byId("partitions").tBodies[0], items, (p) => String(p.number), PARTITIONS);
  for (const [i, head] of [...byId("partition-heads").children].entries())
    head.setAttribute("aria-sort", i !== sorted.by ? "none" : sorted.down ? "descending" : "ascending");
}

// --- incidents

const severity = (a) => ({
  key: a.severity,
  nodes: () => [mark(a.severity === "critical" ? "bad" : "warn", a.severity)],
});
const isOpen = (a) => ({ key: String(a.open), nodes: () => (a.open ? [mark("bad", "live")] : ["ended"]) });
function what(a) {
  if (a.about === "silent") return `${a.of} silent, for ${duration(a.quiet_s)} when it was told`;
  return a.features.length ? a.features.join(", ") : NONE;
}
const ofAlerts = (a, text) => (a.alerts ? text(a) : NONE);
const INCIDENTS = [
  { name: "Since", head: true, kind: "text", show: (a) => moment(a.since) },
  { name: "State", kind: "text", show: isOpen },
  { name: "Severity", kind: "text", show: severity },
  { name: "Key", kind: "text key", show: (a) => a.key ?? NONE },
  { name: "What", kind: "text long reasons", show: what },
  { name: "Alerts", show: (a) => ofAlerts(a, () => number(a.alerts)) },
  { name: "Last alert", kind: "text", show: (a) => ofAlerts(a, () => moment(a.until)) },
  { name: "Highest score", show: (a) => ofAlerts(a, () => a.score.toFixed(4)) },
  { name: "Surprise", show: (a) => (a.surprise == null ? NONE : a.surprise.toFixed(1)) },
  { name: "Incident", kind: "text", show: (a) => a.incident },
];

// --- the topics of a process with several

const topicState = (t) => {
  const [kind, word] = state(t, { length: t.partitions });
  return { key: `${word} ${t.not_ready}`, nodes: () => [mark(kind, word), ...t.not_ready.map((reason) => make("span", { class: "more" }, reason))] };
};
const topicLink = (t) => ({ key: t.topic, nodes: () => [make("a", { href: `?topic=${encodeURIComponent(t.topic)}` }, t.topic)] });
const TOPICS = [
  { name: "Topic", head: true, kind: "text", show: topicLink },
  { name: "State", kind: "text long", show: topicState },
  { name: "Live incidents", show: (t) => number(t.incidents) },
  { name: "Alerts, 10 minutes", show: (t) => number(t.outliers) },
  { name: "Records/s", show: (t) => rate(t.per_second) },
  { name: "Lag", show: (t) => number(t.lag) },
  { name: "Partitions", show: (t) => number(t.partitions) },
];
function showTopics({ topics, version }) {
  const scoring = topics.filter((t) => state(t, { length: t.partitions })[0] === "good").length;
  const speed = rate(total(topics.map((t) => t.per_second)) ?? 0);
  showState(scoring === topics.length && scoring ? "good" : "wait", `${number(scoring)} of ${number(topics.length)} topics scoring`);
  document.title = `${number(scoring)}/${number(topics.length)} topics · ${speed}/s · fomo-stream`;
  put("topics-count", `${number(topics.length)}, ${speed} records/s`);
  put("out", `${number(topics.length)} topics`);
  put("version", version);
  byId("topics-section").hidden = false;
  byId("live").hidden = true;
  fill(byId("topics").tBodies[0], topics, (t) => t.topic, TOPICS);
}

// --- the whole page

function headings(row, columns, sortable) {
  const heads = columns.map((column, i) => {
    const head = make("th", { scope: "col", class: column.kind || "" }, sortable ? "" : column.name);
    if (sortable) {
      const button = make("button", { type: "button" }, column.name);
      button.addEventListener("click", () => {
        sorted = { by: i, down: sorted.by === i ? !sorted.down : i > 1 };
        if (latest) showPartitions(latest.partitions);
      });
      head.append(button);
    }
    return head;
  });
  byId(row).replaceChildren(...heads);
}

function spark({ series, step_s: step }) {
  const known = series.map((y, i) => [i, y]).filter(([, y]) => y != null);
  const peak = Math.max(0, ...known.map(([, y]) => y));
  const x = (i) => (240 * i) / (series.length - 1), y = (value) => 46 - (peak ? (42 * value) / peak : 0);
  const line = known.map(([i, value]) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`);
  const parts = [draw("line", { class: "base", x1: 0, x2: 240, y1: 47.5, y2: 47.5 })];
  if (known.length > 1) {
    const [first, last] = [known[0][0], known[known.length - 1][0]].map((i) => x(i).toFixed(1));
    parts.push(draw("polygon", { class: "area", points: `${first},47 ${line.join(" ")} ${last},47` }));
    parts.push(draw("polyline", { class: "line", points: line.join(" ") }));
  }
  byId("spark").replaceChildren(...parts);
  const minutes = (step * series.length) / 60;
  byId("spark").setAttribute("aria-label", `Records per second over the last ${minutes} minutes, at most ${rate(peak)}`);
  put("rate-peak", known.length ? `peak ${rate(peak)}/s` : "");
}

const STATES = {
  starting: "Starting", waiting: "Waiting", stopping: "Stopping", stopped: "Stopped", failed: "Failed",
};
function state({ state: word, not_ready: reasons }, partitions) {
  if (word === "failed" || word === "stopped") return ["bad", STATES[word]];
  if (word !== "running") return ["wait", STATES[word] ?? word];
  if (reasons.length) return ["wait", "Not ready"];
  return partitions.length ? ["good", "Scoring"] : ["wait", "Ready, without partitions"];
}

function showState(kind, word) {
  put("state", word);
  byId("state").dataset.kind = kind;
}

function total(values) {
  const known = values.filter((x) => x != null);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

function show(status) {
  latest = status;
  const { instance, partitions, alerts, latency } = status;
  const [kind, word] = state(instance, partitions);
  showState(kind, word);
  document.title = `${kind === "good" ? "" : `${word} · `}${instance.topic} · ${rate(status.rate.per_second)}/s · fomo-stream`;

  byId("facts").hidden = false;
  put("topic", instance.topic);
  put("out", [instance.out, instance.alerts].filter(Boolean).join(", "));
  put("group", instance.group);
  put("instance", instance.instance_id ?? "unnamed");
  put("model", instance.model ? `${instance.model}${instance.kernel ? ` (${instance.kernel})` : ""}` : "not loaded yet");
  byId("features-box").hidden = !instance.features.length;
  byId("no-features").hidden = Boolean(instance.features.length);
  put("features-count", instance.features.length);
  put("features", instance.features.join(", "));
  put("version", status.version);

  byId("why").hidden = !instance.not_ready.length;
  const reasons = byId("reasons");
  if (reasons.dataset.shown !== JSON.stringify(instance.not_ready)) {
    reasons.dataset.shown = JSON.stringify(instance.not_ready);
    reasons.replaceChildren(...instance.not_ready.map((reason) => make("li", {}, reason)));
  }

  put("rate", rate(status.rate.per_second));
  spark(status.rate);
  put("p50", duration(latency.end_to_end.p50_s));
  put("p99", duration(latency.end_to_end.p99_s));
  put("wait", latency.poll_to_commit.p50_s == null ? NONE : `${duration(latency.poll_to_commit.p50_s)} / ${duration(latency.poll_to_commit.p99_s)}`);
  const lag = total(partitions.map((p) => p.lag)), ages = partitions.map((p) => p.oldest_unscored_s).filter((s) => s != null);
  put("lag", number(lag));
  put("lag-unit", lag === 1 ? "record" : "records");
  put("oldest", ages.length ? age(Math.max(...ages)) : NONE);
  const behind = partitions.filter((p) => p.lag).length;
  const catchUp = status.catch_up_s >= 10 ? `; at this rate ${duration(status.catch_up_s)}, without new records` : "";
  put("lag-note", !partitions.length ? "no partitions" : behind ? `in ${number(behind)} of ${number(partitions.length)} partitions${catchUp}` : "no partition is behind");
  put("outliers", number(alerts.outliers));
  put("realised", share(alerts.realised_rate));
  put("realised-unit", alerts.realised_rate == null ? "of records: too few yet" : "of records");
  put("requested", share(alerts.requested_rate));

  put("partitions-count", partitions.length ? number(partitions.length) : "");
  byId("partitions").parentElement.hidden = !partitions.length;
  byId("no-partitions").hidden = Boolean(partitions.length);
  put("no-partitions", instance.state === "running" && !instance.not_ready.length
    ? "No partitions: other instances of the group read them all. This one takes over when one of them ends."
    : "No partitions yet. The group gives them to this instance when it has joined.");
  showPartitions(partitions);

  const { incidents } = status, live = incidents.filter((one) => one.open).length;
  put("incidents-count", incidents.length ? `${number(live)} live, ${number(incidents.length - live)} ended lately` : "");
  byId("incidents").parentElement.hidden = !incidents.length;
  byId("no-incidents").hidden = Boolean(incidents.length);
  put("no-incidents", partitions.some((p) => p.generation)
    ? "No incidents since this instance has started."
    : "No incidents yet. They begin when a partition has a context and enough scores to compare with.");
  byId("no-keys").hidden = status.shows_keys || !incidents.length;
  fill(byId("incidents").tBodies[0], incidents, (a) => a.incident, INCIDENTS);
}

// --- asking

let seen = null, timer = 0, asking = false;

async function look() {
  clearTimeout(timer);
  if (document.hidden || asking) return;
  asking = true;
  try {
    const answer = await fetch(`status.json${location.search}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`it answers with status ${answer.status}`);
    const status = await answer.json();
    (status.topics ? showTopics : show)(status);
    seen = new Date();
    byId("lost").hidden = true;
    byId("live").classList.remove("stale");
  } catch (error) {
    showState("bad", "Connection lost");
    document.title = "Connection lost · fomo-stream";
    const since = seen ? `The last answer came at ${moment(seen / 1000)}; the numbers are from then. ` : "";
    put("lost-text", `This instance does not give its numbers (${error.message}). ${since}The page asks again every ${EVERY_MS / 1000} s.`);
    byId("lost").hidden = false;
    byId("live").classList.add("stale");
  } finally {
    asking = false;
    timer = setTimeout(look, EVERY_MS);
  }
}

headings("partition-heads", PARTITIONS, true);
headings("incident-heads", INCIDENTS, false);
headings("topic-heads", TOPICS, false);
byId("all-topics").hidden = !location.search;
document.addEventListener("visibilitychange", look);
look();
