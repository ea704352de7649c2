// A matrix of small cells: parameters by layers. It has a sentence and a table for those who cannot see it.

const CELL = 16, COLUMNS_DRAWN = 64, ROWS_DRAWN = 80, LABEL_LETTERS = 46;

/** Returns a label of at most LABEL_LETTERS letters, of which the end says most. */
function rowLabel(text) {
  const shown = visible(text);
  return shown.length <= LABEL_LETTERS ? shown : `…${shown.slice(1 - LABEL_LETTERS)}`;
}

function drawCell(cell, column, row, left) {
  const x = left + column * CELL, y = 20 + row * CELL;
  const solid = draw("rect", { x: x + 0.5, y: y + 0.5, width: CELL - 1, height: CELL - 1, class: `cell ${cell.kind || ""}`,
    "fill-opacity": cell.level === undefined ? null : (0.06 + 0.9 * cell.level).toFixed(2) }, draw("title", {}, cell.text));
  const sign = cell.sign && draw("text", { x: x + CELL / 2, y: y + CELL / 2 + 4, class: `sign ${cell.kind || ""}`,
    "text-anchor": "middle" }, cell.sign);
  return [solid, sign];
}

/**
 * Makes a matrix. `rows` and `columns` are texts; cellAt(row, column) returns null, or {text, level: 0 to 1, kind, sign}: kind is a
 * class of style.css, sign a letter that says the same without colour.
 */
function makeMatrix(title, summary, rows, columns, cellAt) {
  const shownRows = rows.slice(0, ROWS_DRAWN);
  const labels = shownRows.map(rowLabel);
  const left = 12 + 6.7 * Math.max(...labels.map((label) => label.length));
  const every = columns.length <= 12 ? 1 : 4;
  const cells = [];
  shownRows.forEach((row, r) => {
    cells.push(draw("text", { x: left - 8, y: 20 + r * CELL + 12, "text-anchor": "end", class: "row-label" }, labels[r],
      labels[r] === row ? null : draw("title", {}, row)));
    columns.forEach((_, c) => {
      const cell = cellAt(r, c);
      if (cell) cells.push(...drawCell(cell, c, r, left));
    });
  });
  const first = columns[0] === NO_LAYER ? 1 : 0;
  const heads = columns.map((column, c) => (c < first || (c - first) % every === 0) &&
    draw("text", { x: left + c * CELL + CELL / 2, y: 14, "text-anchor": "middle" }, column.split("–")[0] || column));
  const width = Math.ceil(left + columns.length * CELL + 4), height = 24 + shownRows.length * CELL;
  const drawing = draw("svg", { class: "matrix", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `${title}. ${summary}` }, heads, cells);
  return make("figure", {}, make("figcaption", {}, title), make("p", { class: "muted" }, summary), scrolling(title, drawing),
    rows.length > shownRows.length && make("p", { class: "muted" },
      `Drawn: ${shownRows.length} of ${plural(rows.length, "row")}. The table of tensors has all.`),
    folded("Values as a table", () => makeTable(title, ["", ...columns.map((column) => ({ title: column, number: true }))],
      shownRows.map((row, r) => [nameCode(row), ...columns.map((_, c) => { const cell = cellAt(r, c); return cell ? cell.short : ""; })]))));
}

const NO_LAYER = "–";

/** Returns rows, columns and members of tensors by parameter and layer. */
function byLayer(list) {
  const rows = groupBy(list, (one) => one.pattern);
  const layers = [...new Set(list.filter((one) => one.numbers.length).map((one) => one.numbers[0]))].sort((a, b) => a - b);
  const hasOthers = list.some((one) => one.numbers.length === 0);
  const perColumn = Math.ceil(layers.length / COLUMNS_DRAWN), first = hasOthers ? 1 : 0;
  const columns = hasOthers ? [NO_LAYER] : [];
  for (let begin = 0; begin < layers.length; begin += perColumn) {
    const last = layers[Math.min(begin + perColumn, layers.length) - 1];
    columns.push(last === layers[begin] ? String(last) : `${layers[begin]}–${last}`);
  }
  const place = new Map(layers.map((layer, index) => [layer, first + Math.floor(index / perColumn)]));
  const members = [...rows.values()].map((row) => {
    const cells = new Array(columns.length).fill(null);
    for (const one of row) {
      const column = one.numbers.length ? place.get(one.numbers[0]) : 0;
      (cells[column] = cells[column] || []).push(one);
    }
    return cells;
  });
  return { names: [...rows.values()].map(rowName), columns, members };
}

/** The layer is the column, so it is "*" in a row's name. */
function rowName(row) {
  const numbers = row[0].numbers.map((_, place) => (place === 0 ? "*" : braces(row.map((one) => one.numbers[place]))));
  return joinName(report.tensors.patterns[row[0].pattern], numbers);
}
