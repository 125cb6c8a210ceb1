// How well the detectors rank.

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
