// The table of all tensors: filtered, sorted, collapsed, in pages.

const PAGE_ROWS = 100;

/** Returns the columns that this report has values for. */
function tensorColumns() {
  const measured = tensors.some((one) => one.norm !== null), compared = report.comparison !== null;
  const number = (key, title, text = formatNumber) => ({ key, title, number: true, cell: (one) => text(one[key]), from: (one) => one[key] });
  const bad = (key, title) => ({ key, title, number: true, from: (one) => one[key],
    cell: (one) => (one.norm === null ? "–" : one[key] ? badge("error", formatCount(one[key])) : "0") });
  return [
    { key: "name", title: "Tensor", cell: (one) => nameCode(one.name), from: (one) => one.name },
    { key: "state", title: "State", cell: stateCell, from: (one) => one.state },
    { key: "dtype", title: "Type", cell: (one) => one.dtype, from: (one) => one.dtype },
    { key: "shape", title: "Shape", cell: (one) => one.shape, from: (one) => one.elements },
    number("bytes", "Size", formatBytes),
    ...(measured ? [number("norm", "Norm"), number("rms", "RMS"), number("min", "Min"), number("max", "Max"), number("peak", "Peak"),
      bad("nan", "NaN"), bad("inf", "Inf")] : []),
    ...(compared ? [{ key: "sameness", title: "Compared", cell: samenessCell, from: (one) => one.sameness ?? -1 }] : []),
    { key: "outliers", title: "Look at", cell: outlierCell, from: (one) => one.outliers.length },
    { key: "group", title: "Group", number: true, cell: (one) => (one.group < 0 ? "–" : String(one.group)), from: (one) => one.group },
    number("elements", "Elements", formatCount),
    { key: "crc", title: "CRC-64", cell: (one) => (one.crc ? make("code", {}, one.crc) : "–"), from: (one) => one.crc || "" },
  ];
}

function stateCell(one) {
  const words = [one.isFrozen && "frozen", one.isDerived && "derived"].filter(Boolean);
  return [one.state, ...words.map((word) => make("span", { class: "tag" }, word))];
}

const SAMENESS = ["equal", "≠ different", "? not known", "only in the first", "not compared"];

function samenessCell(one) {
  return one.sameness === null ? "~ some differ" : SAMENESS[one.sameness];
}

function outlierCell(one) {
  const codes = [...new Set(one.outliers.map(({ code }) => code))];
  return codes.flatMap((code) => [badge(one.outliers.find((found) => found.code === code).level, code), " "]);
}

/** Returns a test of a tensor's name: a part of it, or a pattern with * and ?. */
function nameTest(text) {
  const wanted = text.trim().toLowerCase();
  if (!/[*?]/.test(wanted)) return (one) => one.name.toLowerCase().includes(wanted);
  const source = wanted.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*+/g, ".*").replace(/\?/g, ".");
  const pattern = new RegExp(`^${source}$`, "s");
  return (one) => pattern.test(one.name.toLowerCase());
}

const NAME_ORDER = new Intl.Collator("en", { numeric: true });

function compareValues(a, b) {
  if (a === b) return 0;
  if (a === null) return -1;  // what is not known is less than everything
  if (b === null) return 1;
  return typeof a === "string" ? NAME_ORDER.compare(a, b) : a - b;
}

class TensorTable {
  constructor() {
    this.columns = tensorColumns();
    this.filter = { text: "", state: "", onlyOutliers: false };
    this.isCollapsed = true;
    this.sort = null;  // {column, isDescending}
    this.open = new Set();
    this.page = 0;
    this.body = make("tbody");
    this.status = make("p", { role: "status", class: "muted", id: "tensor-status" });
    this.heads = this.columns.map((column) => make("th", { scope: "col", class: column.number ? "number" : null },
      make("button", { type: "button", class: "sort", onclick: () => this.sortBy(column) }, column.title)));
    this.back = make("button", { type: "button", onclick: () => this.turn(-1) }, "Previous page");
    this.next = make("button", { type: "button", onclick: () => this.turn(1) }, "Next page");
  }

  element() {
    const table = make("table", { id: "tensors-table" },
      make("caption", {}, `All tensors${this.columns.some(({ key }) => key === "peak") ? ". Peak is the largest magnitude over the root mean square (RMS)" : ""}.`),
      make("thead", {}, make("tr", {}, this.heads)), this.body);
    const pages = make("p", { class: "pages" }, this.back, " ", this.next);
    this.update();
    return [this.controls(), this.status, scrolling("Table of tensors", table), pages];
  }

  controls() {
    const states = [...new Set(tensors.map((one) => one.state))];
    const change = (apply) => { apply(); this.page = 0; this.update(); };
    const check = (id, text, isOn, apply) => make("label", { class: "check" },
      make("input", { type: "checkbox", id, checked: isOn, onchange: (event) => change(() => apply(event.target.checked)) }), ` ${text}`);
    const input = make("input", { type: "search", id: "filter", size: "30", placeholder: "part of a name, or h.*.weight",
      autocomplete: "off", spellcheck: "false", oninput: () => change(() => { this.filter.text = input.value; }) });
    return make("form", { class: "controls", onsubmit: (event) => event.preventDefault() },
      make("label", {}, "Filter by name ", input),
      chooser("State", [["", "all"], ...states.map((state) => [state, state])], (state) => change(() => { this.filter.state = state; })),
      check("collapse", "One row for numbered layers", true, (isOn) => { this.isCollapsed = isOn; }),
      check("only-outliers", "Only what needs a look", false, (isOn) => { this.filter.onlyOutliers = isOn; }));
  }

  /** A column is sorted upwards, then downwards, then the order is the model's again. */
  sortBy(column) {
    if (!this.sort || this.sort.column !== column) this.sort = { column, isDescending: false };
    else if (!this.sort.isDescending) this.sort = { column, isDescending: true };
    else this.sort = null;
    this.page = 0;
    this.update();
  }

  turn(by) {
    this.page += by;
    this.update();
    this.status.scrollIntoView({ block: "nearest" });
  }

  sorted(list) {
    if (!this.sort) return list;
    const { column, isDescending } = this.sort, sign = isDescending ? -1 : 1;
    return [...list].sort((a, b) => sign * compareValues(column.from(a), column.from(b)));
  }

  update() {
    const matches = nameTest(this.filter.text);
    const shown = tensors.filter((one) => matches(one) && (!this.filter.state || one.state === this.filter.state) &&
      (!this.filter.onlyOutliers || one.outliers.length > 0));
    const rows = this.sorted(this.isCollapsed ? collapse(shown) : shown);
    const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const first = this.page * PAGE_ROWS, last = Math.min(first + PAGE_ROWS, rows.length);
    this.body.replaceChildren(...rows.slice(first, last).flatMap((row) => this.rowElements(row)));
    this.status.textContent = rows.length === 0 ? "No tensor matches." :
      `Rows ${formatCount(first + 1)} to ${formatCount(last)} of ${formatCount(rows.length)}, ` +
      `for ${formatCount(shown.length)} of ${plural(tensors.length, "tensor")}.`;
    this.back.parentElement.toggleAttribute("hidden", pages === 1);
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
    this.heads.forEach((head, place) => this.markSorted(head, this.columns[place]));
  }

  markSorted(head, column) {
    const isSorted = this.sort !== null && this.sort.column === column;
    head.setAttribute("aria-sort", !isSorted ? "none" : this.sort.isDescending ? "descending" : "ascending");
  }

  rowElements(row) {
    if (!row.members) return [this.rowElement(row, null)];
    const key = `${row.pattern} ${row.state} ${row.dtype} ${row.shape}`, isOpen = this.open.has(key);
    const toggle = make("button", { type: "button", class: "expand", "aria-expanded": String(isOpen), onclick: () => {
      if (!this.open.delete(key)) this.open.add(key);
      this.update();
      this.body.querySelector(`[data-row="${row.index}"]`).focus();
    }, "data-row": row.index, "aria-label": `${row.members.length} tensors ${row.name} ${row.state}` }, `${isOpen ? "▾" : "▸"} ${row.members.length}`);
    const members = isOpen ? this.sorted(row.members).map((one) => this.rowElement(one, null, true)) : [];
    return [this.rowElement(row, toggle), ...members];
  }

  rowElement(row, toggle, isMember = false) {
    return make("tr", { class: isMember ? "member" : toggle ? null : "single" }, this.columns.map((column, place) => (place === 0
      ? make("th", { scope: "row" }, toggle, column.cell(row))
      : make("td", { class: column.number ? "number" : null }, column.cell(row)))));
  }
}

function tensorsSection() {
  return makeSection("tensors", "Tensors", new TensorTable().element());
}
