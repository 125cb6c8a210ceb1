// The sections of the page, in their order; each is shown in a step of its own, so that the first are seen at once.

const SECTIONS = [
  ["summary", "Summary", showSummary],
  ["detectors", "Detectors", showDetectors],
  ["timeline", "Scores over time", showTimeline],
  ["over-time", "Metrics over time", showOverTime],
  ["curves", "ROC and precision-recall", showCurves],
  ["calibration", "Calibration", showCalibration],
  ["distribution", "Distribution of scores", showDistribution],
  ["drift", "Drift of features", showDrift],
  ["context", "Context and regimes", showContext],
  ["segments", "Anomalous segments", showSegments],
  ["partitions", "Partitions", showPartitions],
  ["throughput", "Throughput and latency", showThroughput],
  ["alerts", "Top alerts", showAlerts],
  ["origin", "Settings and versions", showOrigin],
];

function sectionBox(id, title) {
  const link = make("a", { class: "anchor", href: `#${id}`, "aria-label": `Link to ${title}` }, "#");
  const box = make("div", { class: "body" });
  byId("main").append(make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title, " ", link), box));
  return box;
}

function show(box, render) {
  try {
    const why = render(box);
    if (typeof why === "string") box.replaceChildren(sentence(why, "empty"));
  } catch (error) { // one part that cannot be shown must not hide the others
    console.error(error);
    box.append(sentence(`This part cannot be shown: ${error.message}`, "empty"));
  }
}

function showContents() {
  const items = SECTIONS.map(([id, title]) => make("li", {}, make("a", { href: `#${id}` }, title)));
  byId("contents").replaceChildren(make("ol", {}, ...items));
  byId("contents").hidden = false;
}

/** For paper: light colours, and plots as wide as a page. */
function listenForPrinting() {
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.documentElement.classList.add("printing");
    setTheme("light");
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    setTheme(before);
  });
}

async function main() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => setTheme(dark.matches ? "dark" : "light");
  follow();
  dark.addEventListener("change", follow);
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  listenForPrinting();
  byId("main").replaceChildren(); // a saved copy of the page has its sections already
  showHeader();
  showContents();
  showNotes(byId("main"));
  const parts = SECTIONS.map(([id, title, render]) => [sectionBox(id, title), render]);
  for (const [i, [box, render]] of parts.entries()) {
    show(box, render);
    if (i >= 2) await new Promise((next) => setTimeout(next)); // lets the browser paint and answer
  }
  if (location.hash) byId(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView(); // the sections above have grown
  document.documentElement.dataset.shownMs = String(Math.round(performance.now()));
}

main();
