// The features that have moved since the first records, and stay there.

const SOME = 0.1, STRONG = 0.25; // PSI: the usual limits

function driftItems() {
  const found = report.drift;
  return (found?.features ?? []).map((name, i) => {
    const psi = found.psi?.[i] ?? [], median = found.median?.[i] ?? [], missing = found.missing?.[i] ?? [];
    return { name, median, missing, most: highest(psi), lasting: found.lasting_psi?.[i] ?? null };
  });
}
function judged(psi) {
  if (!isKnown(psi)) return NONE;
  return psi >= STRONG ? mark("bad", "strong") : psi >= SOME ? mark("wait", "some") : mark("good", "none");
}

function showDrift(box) {
  const items = driftItems(), starts = report.windows?.start ?? [], reference = count(report.drift?.reference_records);
  if (!items.some((one) => isKnown(one.lasting))) return `Too few records to say whether a feature has drifted: it takes ${count(2 * REFERENCE)} of a partition.`;
  const moved = items.filter((one) => one.lasting >= SOME);
  box.append(sentence(`${moved.length ? `${plural(moved.length, "feature")} of ${count(items.length)} moved and stayed there` : "No feature has moved for long"}: the last ${reference} records are compared with the first ${reference} by PSI (population stability index). Below ${SOME} there is no drift to speak of, from ${STRONG} on it is strong.`));
  const line = (one) => smallPicture({ x: starts, value: starts.map((_, i) => one.median[i] ?? null) }, `Median of ${one.name} by window`);
  const shown = table("drift-table", "Drift of each feature", items.sort((a, b) => compare(a.lasting, b.lasting, -1)), [
    { name: "Feature", kind: "text name", head: true, of: (one) => one.name, as: String },
    { name: "Drift", kind: "text", of: (one) => one.lasting, node: (one) => judged(one.lasting) },
    { name: "PSI at the end", of: (one) => one.lasting },
    { name: "Largest of a window", of: (one) => one.most },
    ...(starts.length > 1 ? [{ name: "Median over time", kind: "picture", of: () => null, node: line }] : []),
    { name: "First median", of: (one) => known(one.median)[0] ?? null },
    { name: "Last median", of: (one) => known(one.median).at(-1) ?? null },
    { name: "Most missing", of: (one) => highest(one.missing), as: paddedShare },
  ], { start: { by: "PSI at the end", down: true } });
  box.append(moved.length ? shown : make("details", {}, make("summary", {}, "Show all features"), shown));
  return null;
}
const REFERENCE = 5000; // records, as in measures/drift.py
