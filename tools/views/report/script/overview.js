// What the checkpoints are, what verify found, and where the bytes are.

function facts(checkpoint) {
  const known = (value, text = String) => (value === null || value === undefined ? null : text(value));
  const stored = checkpoint.file_bytes > 0 && `${formatBytes(checkpoint.file_bytes)} in ${plural(checkpoint.shards, "shard")}` +
    (checkpoint.compression ? `, compressed (${checkpoint.compression})` : "") +
    (checkpoint.shared_bytes > 0 ? `, ${formatBytes(checkpoint.shared_bytes)} shared with earlier saves` : "");
  return [
    ["Path", nameCode(checkpoint.path)], ["Format", checkpoint.format], ["Tag", known(checkpoint.tag)], ["Saved", known(checkpoint.saved)],
    ["Step", known(checkpoint.step, formatCount)], ["World size", known(checkpoint.world_size)], ["ZeRO stage", known(checkpoint.stage)],
    ["Parameters", formatCount(checkpoint.parameters)], ["Tensors", formatCount(checkpoint.tensors)],
    ["Bytes", `${formatBytes(checkpoint.bytes)} (${formatCount(checkpoint.bytes)})`], ["Files", stored || null],
    ["Identity", checkpoint.identity ? make("code", {}, checkpoint.identity) : "not recorded by this format"],
  ].filter(([, value]) => value !== null);
}

function factList(list) {
  return make("dl", {}, list.map(([term, value]) => [make("dt", {}, term), make("dd", {}, value)]).flat());
}

function checkpointsTable() {
  const rows = report.checkpoints.map((one) => [nameCode(checkpointName(one)), one.problem ? badge("error", "cannot be opened") : one.format,
    one.step ?? "–", one.saved ?? "–", one.world_size ?? "–", one.stage ?? "–", one.tensors === undefined ? "–" : formatCount(one.tensors),
    one.bytes === undefined ? "–" : formatBytes(one.bytes), one.identity ? make("code", {}, one.identity) : "–",
    one.verified.count ? badge("error", plural(one.verified.count, "finding")) : one.problem ? "–" : badge("ok", "none")]);
  return makeTable("All checkpoints of this report", ["Checkpoint", "Format", { title: "Step", number: true }, "Saved",
    { title: "World size", number: true }, { title: "Stage", number: true }, { title: "Tensors", number: true },
    { title: "Bytes", number: true }, "Identity", "Findings"], rows);
}

/** Returns a bar whose length is a share; the number stands beside it. */
function shareBar(part, whole) {
  const width = whole === 0 ? 0 : (100 * part) / whole;
  return draw("svg", { class: "share", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "track", width: 100, height: 8 }), draw("rect", { class: "bar-fill", width: width.toFixed(2), height: 8 }));
}

function statesTable() {
  return makeTable("Bytes by state and type", ["State", "Type", { title: "Tensors", number: true }, { title: "Elements", number: true },
    { title: "Bytes", number: true }, { title: "Share", number: true }, make("span", { class: "unseen" }, "Share as a bar")],
  details.states.map((row) => [row.state, row.dtype, formatCount(row.tensors), formatCount(row.elements),
    row.derived ? "rebuilt from fp32" : formatBytes(row.bytes), row.derived ? "–" : formatShare(row.bytes, details.bytes),
    row.derived ? "" : shareBar(row.bytes, details.bytes)]));
}

/** Returns a short text for a value of a JSON section. */
function valueText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function groupsTable() {
  const groups = Array.isArray(details.groups) ? details.groups.filter((group) => group !== null && typeof group === "object") : [];
  if (groups.length === 0) return null;
  const keys = [...new Set(groups.flatMap((group) => Object.keys(group)))];
  const counts = groupBy(tensors.filter((one) => one.group >= 0), (one) => one.group);
  const parameters = (group) => new Set((counts.get(group) || []).map((one) => one.name)).size;
  return makeTable("Parameter groups", ["Group", { title: "Parameters", number: true }, ...keys.map((title) => ({ title, number: true }))],
    groups.map((group, place) => [String(place), formatCount(parameters(place)),
      ...keys.map((key) => (key in group ? shorten(valueText(group[key])) : "–"))]));
}

function producerList() {
  if (details.producer === null || typeof details.producer !== "object") return null;
  const shown = Object.entries(details.producer).filter(([key]) => key !== "notes").map(([key, value]) => [key, shorten(valueText(value))]);
  return shown.length > 0 && [make("h3", {}, "Producer"), factList(shown)];
}

function linesOf(heading, lines) {
  return lines.length > 0 && [make("h3", {}, heading), make("ul", { class: "lines" }, lines.map((line) => make("li", {}, line)))];
}

function overviewSection() {
  const section = makeSection("overview", "Overview");
  if (report.checkpoints.length > 1) section.append(checkpointsTable());
  if (!details) {
    section.append(make("p", {}, "No table of tensors can be read. The findings below say why."));
    return section;
  }
  if (report.checkpoints.length > 1) section.append(make("h3", {}, nameCode(checkpointName(details))));
  section.append(make("div", { class: "columns" }, make("div", {}, factList(facts(details))), make("div", {}, statesTable())));
  append(section, {}, [groupsTable(), producerList(),
    linesOf("Second names of parameters (tied weights)", details.aliases), linesOf("Notes", details.notes)].filter(Boolean).flat());
  return section;
}

function findingRow(checkpoint, finding) {
  const lost = finding.lost.map(([tensor, begin, end]) => make("li", {}, nameCode(tensor), ` elements ${formatCount(begin)} to ${formatCount(end)}`));
  const more = finding.lost_ranges - finding.lost.length;
  return [badge(finding.level), make("code", {}, finding.code), nameCode(checkpointName(checkpoint)), nameCode(finding.path),
    [finding.message, finding.bytes && ` (bytes ${formatCount(finding.bytes[0])} to ${formatCount(finding.bytes[1])} of the file)`,
      lost.length > 0 && [make("p", {}, "Lost:"), make("ul", { class: "lines" }, lost, more > 0 && make("li", {}, plural(more, "more range")))]].flat(),
    finding.advice];
}

/** Returns one sentence on what verify did and found. */
function verdict(checkpoint) {
  const { verified } = checkpoint;
  const reason = checkpoint.problem && ` It cannot be opened: ${checkpoint.problem}`;
  if (verified.count > 0) return [badge("error", plural(verified.count, "finding")), reason];
  if (reason) return [badge("error", "not verified"), reason];
  if (!verified.deep) return [badge("ok", "sound"), " as far as names, sizes and tables tell. ", make("code", {}, "--deep"), " reads the data as well."];
  return [badge("ok", "sound"), ` ${formatBytes(verified.bytes_checked)} were read` + (verified.without_checksum > 0
    ? `; ${formatBytes(verified.without_checksum)} of them have no checksum in this format.` : ", and every checksum is right.")];
}

function findingsSection() {
  const section = makeSection("findings", "Findings of verify");
  const damaged = report.checkpoints.filter((one) => one.verified.count > 0 || one.problem);
  const sound = report.checkpoints.filter((one) => !damaged.includes(one));
  damaged.forEach((one) => section.append(make("p", {}, nameCode(checkpointName(one)), " ", verdict(one))));
  if (sound.length > 0) {
    const who = sound.length === 1 ? nameCode(checkpointName(sound[0])) : plural(sound.length, damaged.length > 0 ? "other checkpoint" : "checkpoint");
    section.append(make("p", {}, who, " ", verdict(sound[0])));
  }
  const rows = report.checkpoints.flatMap((one) => one.verified.findings.map((finding) => findingRow(one, finding)));
  if (rows.length > 0)
    section.append(makeTable("What is damaged, and what to do", ["Severity", "Code", "Checkpoint", "File", "What was found", "What to do"], rows));
  const notes = report.checkpoints.flatMap((one) => one.verified.notes);
  append(section, {}, [linesOf("Notes", notes)].filter(Boolean));
  return section;
}
