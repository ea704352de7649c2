// Numbers and names as text.

// Characters that are not seen, or that change the order of others.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Returns `text` with hidden characters as \u202e. Everything that the page shows passes through this function. */
function visible(text) {
  return String(text).replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** Returns the beginning and the end of a long text. */
function shorten(text, most = 120) {
  return text.length <= most ? text : `${text.slice(0, most - 41)}…${text.slice(-40)}`;
}

const COUNT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const MARK = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 6 });

function formatCount(count) {
  return COUNT.format(count);
}

/** Returns "1 tensor" or "2 tensors". */
function plural(count, word) {
  return `${formatCount(count)} ${word}${count === 1 ? "" : "s"}`;
}

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return unit === 0 ? `${bytes} B` : `${bytes.toFixed(bytes < 10 ? 2 : bytes < 100 ? 1 : 0)} ${units[unit]}`;
}

/** Returns four digits; "–" for a value that is not known. */
function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return value.toPrecision(4);
}

/** Returns a mark of an axis: 0.01, 20, 1e-4. */
function formatMark(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  return MARK.format(value);
}

function formatShare(part, whole) {
  return whole === 0 ? "–" : `${((100 * part) / whole).toFixed(1)} %`;
}

/** Returns as many last parts of each checkpoint's path as tell them apart, up to four. */
function nameCheckpoints(checkpoints) {
  const paths = checkpoints.map(({ path, tag }) => {
    const parts = path.replace(/\/+$/, "").split("/");
    return tag && parts[parts.length - 1] !== tag ? [...parts, tag] : parts;
  });
  for (let depth = 1; ; ++depth) {
    const names = paths.map((parts) => parts.slice(-depth).join("/"));
    if (depth === 4 || new Set(names).size === names.length) return new Map(checkpoints.map((one, place) => [one, names[place]]));
  }
}

const checkpointNames = nameCheckpoints(report.checkpoints);

/** Returns what a checkpoint is called in tables and legends. */
function checkpointName(checkpoint) {
  return checkpointNames.get(checkpoint);
}
