// Norms and outliers by layer, and who holds what.

const MEASURES = [["rms", "root mean square"], ["norm", "L2 norm"], ["largest", "largest magnitude"], ["peak", "peak (largest / rms)"]];

function outliersTable() {
  if (report.outliers.length === 0) {
    return make("p", {}, badge("ok", "nothing stands out"), details.has_stats
      ? ": no NaN, no infinity, no matrix of zeros, no moments or scales far from the model's other layers." : ".");
  }
  const rows = report.outliers.map(({ tensor, level, code, message }) =>
    [nameCode(tensors[tensor].name), tensors[tensor].state, badge(level), make("code", {}, code), message]);
  const table = makeTable("Tensors that need a look", ["Tensor", "State", "Severity", "Code", "Why"], rows.slice(0, 25));
  const hidden = report.outlier_count - Math.min(rows.length, 25);
  const missing = report.outlier_count > rows.length ? ` This page has the first ${formatCount(rows.length)}.` : "";
  return hidden > 0 ? [table, make("p", { class: "muted" }, `${formatCount(hidden)} more: choose "Only what needs a look" below.${missing}`)] : table;
}

/** Returns cells of one measure; their strength is the place of the logarithm between the smallest and the largest. */
function measureCells(cells, measure) {
  const combined = cells.map((row) => row.map((members) => members && combine(members)));
  const logs = combined.flat().filter((one) => one && one[measure] > 0).map((one) => Math.log10(one[measure]));
  const [low, high] = extent(logs);
  const cellOf = (one) => {
    if (!one || one.norm === null) return null;
    const short = formatNumber(one[measure]), text = `${one.name}: ${short}`;
    if (one.bad > 0) return { short: `${short} (${plural(one.bad, "bad element")})`, text: `${text}, ${one.bad} NaN or infinite`, kind: "bad", sign: "✕" };
    if (!one[measure]) return { short, text, kind: "zero", sign: "0" };
    return { short, text, level: high > low ? (Math.log10(one[measure]) - low) / (high - low) : 0.5 };
  };
  return { at: combined.map((row) => row.map(cellOf)), low: 10 ** low, high: 10 ** high };
}

function layerMatrix(state, measure) {
  const { names, columns, members } = byLayer(tensors.filter((one) => one.state === state));
  const { at, low, high } = measureCells(members, measure);
  const title = `${state} by parameter and layer: ${MEASURES.find(([key]) => key === measure)[1]}`;
  const scale = low < high ? `From ${formatNumber(low)} (faint) to ${formatNumber(high)} (strong), logarithmic. ` : low === high ? `All ${formatNumber(low)}. ` : "";
  const summary = `${scale}✕ has NaN or infinite elements, 0 is zero everywhere.`;
  return makeMatrix(title, summary, names, columns, (row, column) => at[row][column]);
}

/** Draws the norm of each layer, all its parameters together, with one line for each state. */
function layerChart() {
  const numbered = tensors.filter((one) => one.numbers.length > 0 && one.norm !== null && !one.isDerived);
  const layers = [...new Set(numbered.map((one) => one.numbers[0]))].sort((a, b) => a - b);
  if (layers.length < 2) return null;
  const series = [...groupBy(numbered, (one) => one.state)].map(([name, list]) => {
    const members = groupBy(list, (one) => one.numbers[0]);
    return { name, points: layers.map((layer) => [layer, members.has(layer) ? combine(members.get(layer)).norm : null]) };
  });
  return lineChart("Norm of each layer, by state", "layer", "L2 norm", series);
}

function layersSection() {
  const section = makeSection("layers", "Norms and outliers");
  if (!details.has_stats) {
    section.append(make("p", {}, "This format records no statistics. ", make("code", {}, "unishard report --stats"), " measures them, which reads the data."));
    return section;
  }
  const states = [...new Set(tensors.filter((one) => one.norm !== null).map((one) => one.state))];
  const chosen = { state: states[0], measure: "rms" };
  const place = make("div");
  const show = () => place.replaceChildren(layerMatrix(chosen.state, chosen.measure));
  show();
  append(section, {}, [outliersTable(), make("form", { class: "controls", onsubmit: (event) => event.preventDefault() },
    chooser("State", states.map((state) => [state, state]), (state) => { chosen.state = state; show(); }),
    chooser("Measure", MEASURES, (measure) => { chosen.measure = measure; show(); })),
  make("div", { class: "panels" }, place, layerChart())].flat().filter(Boolean));
  return section;
}

/** Makes the table of bytes; a cell's shade is its share of the largest cell. */
function ownershipTable(owned) {
  const most = Math.max(...owned.bytes.flat(), 1);
  const total = (row) => row.reduce((sum, bytes) => sum + bytes, 0);
  const columns = ["Unit", ...owned.ranks.map((ranks) => ({ title: [make("span", { class: "unseen" }, "rank "), ranks.replace("-", "–")], number: true })),
    { title: "All", number: true }];
  const rows = owned.units.map((unit, place) => [nameCode(unit), ...owned.bytes[place].map((bytes) => (bytes === 0 ? "–" : formatBytes(bytes))),
    formatBytes(total(owned.bytes[place]))]);
  const sums = owned.ranks.map((_, column) => total(owned.bytes.map((row) => row[column])));
  rows.push(["All units", ...sums.map(formatBytes), formatBytes(total(sums))]);
  const table = makeTable("Bytes by unit (rows) and rank (columns); stronger cells hold more", columns, rows);
  table.querySelectorAll("tbody tr").forEach((row, place) => row.querySelectorAll("td").forEach((cell, column) => {
    const bytes = owned.bytes[place]?.[column];
    if (bytes > 0) cell.style.setProperty("--share", `${Math.round((40 * bytes) / most)}%`);
    if (bytes > 0) cell.classList.add("shaded");
  }));
  return table;
}

function ownershipSection() {
  const section = makeSection("ranks", "Who holds what");
  const { owned } = report;
  if (!owned) {
    section.append(make("p", {}, details.problem
      ? "The tables of the shards cannot be read, and they say which rank holds what."
      : details.world_size > 1
      ? "This format's tables do not say which rank's file holds which elements."
      : "This checkpoint is not sharded over ranks."));
    return section;
  }
  const least = Math.min(...owned.bars), most = Math.max(...owned.bars);
  const bars = `${plural(owned.count, "rank")} hold between ${formatBytes(least)} and ${formatBytes(most)} each.`;
  const label = (place) => (owned.ranks_per_bar === 1 ? `rank ${place}` : `largest of ranks ${place * owned.ranks_per_bar} and following`);
  append(section, {}, [make("p", {}, bars), owned.count > 1 && make("figure", {}, make("figcaption", {}, "Bytes by rank"),
    barChart("Bytes by rank", owned.ranks_per_bar === 1 ? "rank" : `rank / ${owned.ranks_per_bar}`, owned.bars, label)), ownershipTable(owned)].filter(Boolean));
  return section;
}
