// Numbered layers as one row: h.{0..47}.attn.weight.

/** Returns the numbers of a set in braces: "{0..47}", "{0, 2, 5..7}"; a single one without. */
function braces(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  if (sorted.length === 1) return String(sorted[0]);
  const runs = [];
  for (const number of sorted) {
    const last = runs[runs.length - 1];
    if (last && last[1] === number - 1) {
      last[1] = number;
    } else {
      runs.push([number, number]);
    }
  }
  const shown = runs.slice(0, 6).map(([first, end]) => (first === end ? `${first}` : `${first}..${end}`));
  if (runs.length > 6) shown.push("…");
  return `{${shown.join(", ")}}`;
}

/** Returns one name for tensors of the same pattern. */
function collapsedName(members) {
  const numbers = members[0].numbers.map((_, place) => braces(members.map((one) => one.numbers[place])));
  return joinName(report.tensors.patterns[members[0].pattern], numbers);
}

/** Returns the members of `items` by `key`, in the order of their first one. */
function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    const at = key(item);
    if (groups.has(at)) groups.get(at).push(item);
    else groups.set(at, [item]);
  }
  return groups;
}

/** Returns the rows of the table: tensors of the same pattern, state, type and shape are one row with `members`. */
function collapse(list) {
  const alike = groupBy(list, (one) => `${one.pattern} ${one.state} ${one.dtype} ${one.shape}`);
  return [...alike.values()].map((members) =>
    (members.length === 1 ? members[0] : { ...combine(members), name: collapsedName(members), members }));
}
