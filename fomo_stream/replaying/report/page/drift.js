// The features that have moved from the first records to the last.

const SOME = 0.1, STRONG = 0.25; // PSI: the usual limits

function judged(psi) {
  if (!isKnown(psi)) return NONE;
  return psi >= STRONG ? mark("bad", "strong") : psi >= SOME ? mark("wait", "some") : mark("good", "none");
}

function showDrift(box) {
  const found = report.drift ?? {}, reference = count(found.reference_records), at = (key) => (one) => found[key]?.[one.i] ?? null;
  const items = (found.features ?? []).map((name, i) => ({ name, i })), psi = at("psi");
  if (!has(found.psi)) return `Too few records to say whether a feature has drifted: it takes ${count(2 * found.reference_records)} of a partition.`;
  const moved = items.filter((one) => psi(one) >= SOME);
  box.append(sentence(`${moved.length ? `${plural(moved.length, "feature")} of ${count(items.length)} moved` : "No feature has moved"}: the last ${reference} records are compared with the first ${reference} by PSI (population stability index). Below ${SOME} there is no drift to speak of, from ${STRONG} on it is strong.`));
  const shown = table("drift-table", "Drift of each feature", items, [
    { name: "Feature", kind: "text name", head: true, of: (one) => one.name, as: String },
    { name: "Drift", kind: "text", of: psi, node: (one) => judged(psi(one)) },
    { name: "PSI", of: psi },
    { name: "First median", of: at("first_median") }, { name: "Last median", of: at("last_median") },
    { name: "Missing at first", of: at("first_missing"), as: paddedShare }, { name: "Missing at last", of: at("last_missing"), as: paddedShare },
  ], { start: { by: "PSI", down: true } });
  box.append(moved.length ? shown : make("details", {}, make("summary", {}, "Show all features"), shown));
  return null;
}
