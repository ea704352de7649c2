// Makes elements. Text from the checkpoint becomes text nodes and attributes only, never markup.

const SVG = "http://www.w3.org/2000/svg";

function append(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) {
      element.addEventListener(key.slice(2), value);
    } else {
      element.setAttribute(key, value === true ? "" : visible(value));
    }
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

/** Makes an HTML element; attributes that begin with "on" are listeners. */
function make(tag, attributes = {}, ...children) {
  return append(document.createElement(tag), attributes, children);
}

/** Makes an SVG element. */
function draw(tag, attributes = {}, ...children) {
  return append(document.createElementNS(SVG, tag), attributes, children);
}

/** Makes the code element for a name, which may be long and of any script. */
function nameCode(name) {
  const short = shorten(name);
  return make("code", { class: "name", title: short === name ? null : name }, short);
}

/** Makes a word for a level that says it by text, and not by colour alone. */
function badge(level, text = level) {
  const sign = { error: "✕", warning: "!", note: "i", ok: "✓" }[level] || "";
  return make("span", { class: `badge ${level}` }, make("span", { "aria-hidden": "true" }, `${sign} `), text);
}

/** The keyboard reaches a region while it has something to scroll. */
const overflows = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
}));

/** Makes a region that scrolls sideways. */
function scrolling(label, ...children) {
  const region = make("div", { class: "scroll", role: "region", tabindex: "-1", "aria-label": label }, ...children);
  overflows.observe(region);
  return region;
}

/**
 * Makes a table. `columns` are texts, or {title, number: true} for right-aligned ones; `rows` are lists of cells, and the first
 * cell of a row is its heading.
 */
function makeTable(caption, columns, rows) {
  const classes = columns.map((column) => (column.number ? "number" : null));
  const head = columns.map((column, place) => make("th", { scope: "col", class: classes[place] }, column.number ? column.title : column));
  const body = rows.map((cells) => make("tr", {}, cells.map((cell, place) =>
    make(place === 0 ? "th" : "td", { scope: place === 0 ? "row" : null, class: classes[place] }, cell))));
  return scrolling(caption, make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, head)),
    make("tbody", {}, body)));
}

/** Makes a part that is built when it is first opened. */
function folded(summary, build) {
  const part = make("details", {}, make("summary", {}, summary));
  part.addEventListener("toggle", () => { if (part.open && part.childElementCount === 1) part.append(build()); });
  return part;
}

/** Makes a labelled list of choices; `choose` gets the value of the chosen one. */
function chooser(label, choices, choose) {
  const list = make("select", { onchange: () => choose(list.value) },
    choices.map(([value, text]) => make("option", { value }, text)));
  return make("label", {}, `${label} `, list);
}

/** Makes a section with a heading, and its link in the navigation. */
function makeSection(id, heading, ...children) {
  document.getElementById("links").append(make("li", {}, make("a", { href: `#${id}` }, heading)));
  return make("section", { id, "aria-labelledby": `${id}-heading` }, make("h2", { id: `${id}-heading` }, heading), ...children);
}
