// Curves of one number against another, as SVG: sharp on paper, and coloured by the style sheet.

const WIDE = 420, HIGH = 320, PAD = { left: 56, right: 14, top: 12, bottom: 46 };
const STEPS = 50; // of a key, from one end to the other

/** The place of a value between 0 and 1; null where a logarithmic scale has none. */
function part(scale, value) {
  if (!isKnown(value) || (scale.log && value <= 0)) return null;
  const [min, max, x] = scale.log ? [scale.min, scale.max, value].map(Math.log10) : [scale.min, scale.max, value];
  return (x - min) / (max - min || 1);
}
const atPart = (scale, at) => (scale.log ? scale.min * (scale.max / scale.min) ** at : scale.min + at * (scale.max - scale.min));
const toX = (scale, value) => PAD.left + part(scale, value) * (WIDE - PAD.left - PAD.right);
const toY = (scale, value) => HIGH - PAD.bottom - part(scale, value) * (HIGH - PAD.top - PAD.bottom);

function pathOf(line, x, y) {
  let pen = "M";
  return line.xs.map((value, i) => {
    if (part(x, value) === null || part(y, line.ys[i]) === null) { pen = "M"; return ""; }
    const at = `${pen}${toX(x, value).toFixed(1)} ${toY(y, line.ys[i]).toFixed(1)}`;
    pen = "L";
    return at;
  }).join("");
}

/** The value of a line at x, between its points; null outside of them. xs ascend. */
function valueAt({ xs, ys }, x) {
  const i = xs.findLastIndex((value) => isKnown(value) && value <= x);
  if (i < 0) return null;
  if (i === xs.length - 1 || !isKnown(ys[i]) || !isKnown(ys[i + 1])) return x > xs[i] ? null : ys[i];
  return ys[i] + ((ys[i + 1] - ys[i]) * (x - xs[i])) / (xs[i + 1] - xs[i]);
}

function frame(x, y) {
  const parts = [], bottom = HIGH - PAD.bottom, right = WIDE - PAD.right;
  for (const tick of x.ticks) {
    const at = toX(x, tick);
    parts.push(draw("line", { class: "grid", x1: at, x2: at, y1: PAD.top, y2: bottom }));
    parts.push(draw("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, x.text(tick)));
  }
  for (const tick of y.ticks) {
    const at = toY(y, tick);
    parts.push(draw("line", { class: "grid", x1: PAD.left, x2: right, y1: at, y2: at }));
    parts.push(draw("text", { x: PAD.left - 7, y: at + 4, "text-anchor": "end" }, y.text(tick)));
  }
  parts.push(draw("text", { class: "name", x: (PAD.left + right) / 2, y: HIGH - 8, "text-anchor": "middle" }, x.name));
  const middle = (PAD.top + bottom) / 2;
  parts.push(draw("text", { class: "name", x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, y.name));
  return parts;
}

function drawn(line, x, y) {
  const path = draw("path", { class: line.fill ? "curve filled" : "curve", d: pathOf(line, x, y) });
  path.style.setProperty("--swatch", `var(--${line.colour})`);
  path.style.strokeDasharray = (line.dash ?? []).join(" ");
  path.style.strokeWidth = line.width ?? 1.75;
  return path;
}

/**
 * A plot of curves. x, y: {min, max, log, ticks, text, name}; lines: {name, xs, ys, colour, dash, width, fill};
 * diagonal: whether to draw the line x = y. Gives {box, show(i, isShown)}.
 */
function curves({ label, title, x, y, lines, diagonal = false, summary }) {
  const plot = draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label, tabindex: "0", class: "curves" });
  plot.append(...frame(x, y));
  if (diagonal) {
    const [from, to] = [Math.max(x.min, y.min), Math.min(x.max, y.max)];
    plot.append(draw("path", { class: "diagonal", d: pathOf({ xs: [from, to], ys: [from, to] }, x, y) }));
  }
  const paths = lines.map((line) => drawn(line, x, y));
  const guide = draw("line", { class: "guide", y1: PAD.top, y2: HIGH - PAD.bottom, visibility: "hidden" });
  plot.append(...paths.reverse(), guide); // the first line on top
  paths.reverse();
  const readout = make("p", { class: "readout" }, "Point at the plot, or focus it and use the arrow keys, to read values."), shown = lines.map(() => true);
  let at = null;
  const read = (where) => {
    at = Math.max(0, Math.min(1, where));
    const value = atPart(x, at), on = toX(x, value);
    guide.setAttribute("x1", on);
    guide.setAttribute("x2", on);
    guide.setAttribute("visibility", "visible");
    const texts = lines.map((line, i) => [line.name, shown[i] ? valueAt(line, value) : null]).filter(([, found]) => isKnown(found));
    readout.textContent = `${x.name} ${x.text(value)}: ${texts.map(([name, found]) => `${name} ${y.text(found)}`).join(", ") || "no value"}`;
  };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    read((((event.clientX - box.left) * WIDE) / box.width - PAD.left) / (WIDE - PAD.left - PAD.right));
  });
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -STEPS, End: STEPS }[event.key];
    if (!step) return;
    event.preventDefault();
    read((at ?? (step > 0 ? -1 / STEPS : 1 + 1 / STEPS)) + step / STEPS);
  });
  sayWhatIsRead(plot, readout);
  const box = make("div", { class: "figure" }, ...(title ? [make("h3", {}, title)] : []), plot, readout);
  if (summary) box.append(sentence(summary));
  return { box, show(i, isShown) { shown[i] = isShown; paths[i].style.display = isShown ? "" : "none"; } };
}

const fractionTicks = [0, 0.2, 0.4, 0.6, 0.8, 1];
const fraction = (name) => ({ name, min: 0, max: 1, ticks: fractionTicks, text: number });
