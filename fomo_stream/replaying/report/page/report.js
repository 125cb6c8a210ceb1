// The page: the answer and the scores over time first, then four parts, each of which is made when it is opened.

const FIRST_SCREEN = [["answer", "Worst incidents", showAnswer], ["timeline", "Scores over time", showTimeline], ["words", "The result in words", showWords]];
const isCompared = hasLabels || detectors.length > 1;
// [id, title, what is in it, its sections]; a section that has nothing to show is left out
const PARTS = [
  ["incidents", "Incidents", "the highest alert of each, keys, features, silence", [
    ["alerts", "Highest alerts", showAlerts], ["keys", "Keys that alert most", showKeys], ["reasons", "Features that are most often the first reason", showReasons],
    ["silence", "Silence", showSilence]]],
  ["quality", "Quality", hasLabels ? "how well labelled faults are found, and by which detector" : "the detectors", !isCompared ? [] : [
    ["detectors", "Detectors", showDetectors], ["segments", "Labelled faults", showSegments]]],
  ["data", "Data", "drift of features", [["drift", "Drift of features", showDrift]]],
  ["settings", "Settings", "notes, settings, versions, how long it took", [["notes", "Notes", showNotes], ["origin", "Settings and versions", showOrigin], ["throughput", "Throughput", showThroughput]]],
].filter(([, , , sections]) => sections.length);

/** A section with its title, in a box of the page. Without anything to show it says why, or is left out if `isOptional`. */
function addSection(parent, [id, title, render], tag, isOptional) {
  const link = make("a", { class: "anchor", href: `#${id}`, "aria-label": `Link to ${title}` }, "#"), box = make("div", { class: "body" });
  const section = make("section", { id, "aria-labelledby": `${id}-title` }, make(tag, { id: `${id}-title` }, title, " ", link), box);
  parent.append(section);
  try {
    const why = render(box);
    if (typeof why === "string" && isOptional) section.remove();
    else if (typeof why === "string") box.replaceChildren(sentence(why, "empty"));
    return why;
  } catch (error) { // one part that cannot be shown must not hide the others
    console.error(error);
    box.append(sentence(`This part cannot be shown: ${error.message}`, "empty"));
    return null;
  }
}

function addPart([id, title, teaser, sections]) {
  const inside = make("div", { class: "inside" });
  const part = make("details", { id, class: "part" }, make("summary", {}, make("h2", {}, title), make("span", { class: "note" }, teaser)), inside);
  part.fill = () => {
    if (inside.childElementCount) return;
    const reasons = sections.map((one) => addSection(inside, one, "h3", true));
    if (!inside.childElementCount) inside.append(sentence(reasons.find((why) => typeof why === "string") ?? "Nothing was found.", "empty"));
  };
  part.addEventListener("toggle", () => { if (part.open) part.fill(); });
  byId("main").append(part);
}

function openPart(part) {
  part.open = true;
  part.fill();
}

/** Shows what a link names: its part is opened, as it may not be made yet. */
function follow(hash) {
  const id = decodeURIComponent(hash.slice(1)), of = PARTS.find(([name, , , sections]) => name === id || sections.some(([one]) => one === id));
  if (of) openPart(byId(of[0]));
  byId(id)?.scrollIntoView();
}

function showContents() {
  const items = [...FIRST_SCREEN, ...PARTS].map(([id, title]) => make("li", {}, make("a", { href: `#${id}` }, title)));
  byId("contents").replaceChildren(make("ol", {}, ...items));
  byId("contents").hidden = false;
}

/** For paper: light colours, plots as wide as a page, and all parts open. */
function listenForPrinting() {
  let theme = null, closed = [];
  window.addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    closed = [...document.querySelectorAll("details.part:not([open])")];
    document.documentElement.classList.add("printing");
    closed.forEach(openPart);
    setTheme("light");
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    for (const part of closed) part.open = false;
    setTheme(theme);
  });
}

function main() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const asAsked = () => setTheme(dark.matches ? "dark" : "light");
  asAsked();
  dark.addEventListener("change", asAsked);
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  listenForPrinting();
  byId("main").replaceChildren(); // a saved copy of the page has its sections already
  showHeader();
  showContents();
  if (source.is_complete === false) byId("main").append(sentence("This replay was stopped before its end: the report is about the records until then.", "notice"));
  for (const one of FIRST_SCREEN) addSection(byId("main"), one, "h2", false);
  for (const part of PARTS) addPart(part);
  window.addEventListener("hashchange", () => follow(location.hash));
  byId("contents").addEventListener("click", (event) => { if (event.target.hash === location.hash) follow(location.hash); });
  if (location.hash) follow(location.hash);
  document.documentElement.dataset.shownMs = String(Math.round(performance.now()));
}

main();
