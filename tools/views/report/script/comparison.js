// What differs between the first two checkpoints.

/** Adds to each tensor that was read and differs: `differing`, the number of elements, and `most`, the largest |a - b|. */
function addDifferences(read) {
  for (const [index, differing, most] of read) Object.assign(tensors[index], { differing, most: most ?? Infinity });
}

/** Returns a function from a difference to its strength between 0 and 1: the place of its logarithm among all. */
function differenceScale() {
  const [low, high] = extent(tensors.filter((one) => one.most > 0 && one.most < Infinity).map((one) => Math.log10(one.most)));
  return (most) => (most === Infinity || high <= low ? 1 : most > 0 ? (Math.log10(most) - low) / (high - low) : 0);
}

function differenceText(most) {
  return most === Infinity ? "infinite" : formatNumber(most);
}

/** Makes a matrix for each state. */
function samenessMatrices() {
  const compared = groupBy(tensors.filter((one) => one.sameness <= ONLY_FIRST), (one) => one.state);
  const scale = differenceScale();
  return make("div", { class: "panels" }, [...compared].map(([state, list]) => {
    const { names, columns, members } = byLayer(list);
    const differing = list.filter((one) => one.sameness === DIFFERENT).length;
    return makeMatrix(state, `${differing} of ${plural(list.length, "tensor")} differ.`, names, columns,
      (row, column) => members[row][column] && samenessCellOf(members[row][column], scale));
  }));
}

const CELL_KINDS = [[DIFFERENT, "different", "differs", "≠"], [ONLY_FIRST, "only in the first", "only", "1"],
  [UNKNOWN, "not known", "unknown", "?"], [EQUAL, "equal", "equal", "·"]];

/** Returns the cell of tensors that share a row and a column. */
function samenessCellOf(members, scale) {
  const different = members.filter((one) => one.sameness === DIFFERENT);
  const where = `${members[0].name} [${members[0].state}]${members.length > 1 ? ` and ${members.length - 1} more` : ""}`;
  const [, word, kind, sign] = CELL_KINDS.find(([sameness]) => members.some((one) => one.sameness === sameness));
  const most = extent(different.filter((one) => one.most !== undefined).map((one) => one.most))[1];
  const size = most >= 0 ? `, at most by ${differenceText(most)}` : "";
  if (different.length > 0 && different.length < members.length) {
    const short = `${different.length} of ${members.length} differ${size}`;
    return { short, text: `${where}: ${short}`, kind: "mixed", sign: "~" };
  }
  const level = size === "" ? undefined : scale(most);
  return { short: word + size, text: `${where}: ${word}${size}`, kind: level < 0.5 ? "differs faint" : kind, level, sign };
}

function comparisonSection() {
  const { comparison } = report;
  const first = report.checkpoints[comparison.a], second = report.checkpoints[comparison.b];
  const section = makeSection("comparison", "What differs");
  const compared = comparison.equal + comparison.different + comparison.unknown;
  const summary = `Of ${plural(compared, "tensor")} that both have, ${formatCount(comparison.equal)} are equal, ${formatCount(comparison.different)} differ` +
    (comparison.unknown ? `, and ${formatCount(comparison.unknown)} have no digests to compare` : "") +
    `. Only the first has ${formatCount(comparison.only_first)}, only the second ${formatCount(comparison.only_second_count)}.`;
  const strength = comparison.read ? " Stronger cells differ by more." : "";
  addDifferences(comparison.read || []);
  append(section, {}, [
    make("p", {}, "First: ", nameCode(checkpointName(first)), ". Second: ", nameCode(checkpointName(second)), ". ",
      first.identity && first.identity === second.identity ? badge("ok", "the same identity") : ""),
    make("p", {}, summary, comparison.unknown > 0 && !comparison.read ? [" ", make("code", {}, "--deep"), " reads and compares them."] : ""),
    make("p", { class: "muted" }, `≠ different, ~ some differ, · equal, ? no digests, 1 only in the first. The columns are layers.${strength}`),
    samenessMatrices(), largestDifferences(),
    linesOf("Only in the second", comparison.only_second), linesOf("Beside the tensors", comparison.information)].flat().filter(Boolean));
  return section;
}

function largestDifferences() {
  const differing = tensors.filter((one) => one.most !== undefined).sort((a, b) => compareValues(b.most, a.most));
  if (differing.length === 0) return null;
  return makeTable(differing.length > 25 ? "The 25 largest differences" : "Differences",
    ["Tensor", "State", { title: "Elements", number: true }, { title: "Differing", number: true }, { title: "Largest |a − b|", number: true }],
    differing.slice(0, 25).map((one) => [nameCode(one.name), one.state, formatCount(one.elements), formatCount(one.differing), differenceText(one.most)]));
}
