// Tables that are sorted by a click or a key on a heading.

const PRINTED = 30; // rows, as in report.css

/** How two values of a column follow each other, ascending; unknown ones come last in both directions. */
function compare(a, b, sign) {
  if (!isKnown(a) || !isKnown(b)) return isKnown(a) ? -1 : isKnown(b) ? 1 : 0;
  if (typeof a === "string" || typeof b === "string") return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  return sign * (a - b);
}

function cell(column, item, i) {
  const tag = column.head ? "th" : "td", node = make(tag, { "data-name": column.name, ...(column.head ? { scope: "row" } : {}) });
  if (column.kind) node.className = column.kind;
  const shown = column.node ? column.node(item, i) : (column.as ?? padded)(column.of(item));
  node.append(...(Array.isArray(shown) ? shown : [shown]));
  return node;
}

/**
 * A table of items in a box that scrolls.
 *
 * columns: {name, of(item): the value to sort by, as(value): its text, node(item, i): elements in its place, kind, head,
 * title, optional: left out where no item has a value}; start: {by: index of a column, down}, as the items are sorted
 * already; options.row(row, item) may change a row.
 */
function table(id, label, items, columns, { start = null, row = () => {} } = {}) {
  columns = columns.filter((column) => !column.optional || items.some((item) => isKnown(column.of(item))));
  const body = make("tbody"), heads = make("tr");
  const rows = items.map((item, i) => {
    const node = make("tr", {}, ...columns.map((column) => cell(column, item, i)));
    row(node, item);
    return { item, node, i };
  });
  const state = { column: start?.by ?? null, down: start?.down ?? false };
  const show = () => {
    for (const [i, head] of [...heads.children].entries())
      head.setAttribute("aria-sort", columns[i].name !== state.column ? "none" : state.down ? "descending" : "ascending");
  };
  const sort = (column) => {
    state.down = state.column === column.name ? !state.down : !(column.kind ?? "").includes("text");
    state.column = column.name;
    const sign = state.down ? -1 : 1;
    rows.sort((a, b) => compare(column.of(a.item), column.of(b.item), sign) || a.i - b.i);
    body.append(...rows.map((one) => one.node));
    show();
  };
  for (const column of columns) {
    const head = make("th", { scope: "col", class: column.kind ?? "" });
    const by = make("button", { type: "button", title: column.title ?? false }, column.name);
    by.addEventListener("click", () => sort(column));
    head.append(by);
    heads.append(head);
  }
  body.append(...rows.map((one) => one.node));
  show();
  const whole = make("table", { id }, make("caption", { class: "hidden" }, label), make("thead", {}, heads), body);
  const box = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, whole);
  if (items.length > PRINTED) box.append(sentence(`The first ${PRINTED} of ${count(items.length)} rows are printed.`, "printed"));
  return box;
}
