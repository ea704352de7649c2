// Charts of lines and bars, each with a sentence for screen readers and a table of its values.

const WIDTH = 760, HEIGHT = 250, LEFT = 70, RIGHT = 14, TOP = 12, BOTTOM = 40;
const MARKED_POINTS = 200;
const LINE_STYLES = 18;  // six colours, three dashes (style.css)

/** Returns about `count` round numbers that span [low, high]. */
function ticks(low, high, count = 5) {
  if (low === high) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const out = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) out.push(Number(value.toPrecision(12)));
  return out;
}

/** Returns a scale of values to positions: logarithmic where the values are positive and span two decades. */
function makeScale(values, from, to) {
  const [low, high] = extent(values);
  if (low > 0 && high / low >= 100) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const marks = [];
    for (let power = first; power <= last; power += Math.max(1, Math.ceil((last - first) / 6))) marks.push(10 ** power);
    return { ticks: marks, name: "logarithmic", at: (value) => from + ((Math.log10(value) - first) / (last - first)) * (to - from) };
  }
  const pad = high === low ? Math.abs(high) / 2 || 1 : 0;
  const begin = low - pad, end = high + pad;
  return { ticks: ticks(begin, end), name: "linear", at: (value) => from + ((value - begin) / (end - begin)) * (to - from) };
}

function axes(x, y, xTitle, yTitle) {
  const last = HEIGHT - BOTTOM;
  return draw("g", { class: "axes" },
    y.ticks.map((value) => [draw("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y.at(value), y2: y.at(value) }),
      draw("text", { x: LEFT - 6, y: y.at(value) + 4, "text-anchor": "end" }, formatMark(value))]).flat(),
    x.ticks.map((value) => [draw("line", { x1: x.at(value), x2: x.at(value), y1: last, y2: last + 4 }),
      draw("text", { x: x.at(value), y: last + 17, "text-anchor": "middle" }, formatMark(value))]).flat(),
    draw("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle", class: "title" }, xTitle),
    draw("text", { x: 12, y: (TOP + last) / 2, "text-anchor": "middle", class: "title",
      transform: `rotate(-90 12 ${(TOP + last) / 2})` }, yTitle));
}

function linePath(points, x, y) {
  let path = "", isDrawing = false;
  for (const [place, value] of points) {
    const isKnown = value !== null && (y.name === "linear" || value > 0);
    if (isKnown) path += `${isDrawing ? "L" : "M"}${x.at(place).toFixed(1)} ${y.at(value).toFixed(1)}`;
    isDrawing = isKnown;
  }
  return path;
}

/** Returns a sentence on the lines: where they begin and end. */
function describeLines(series) {
  return series.slice(0, 4).map(({ name, points }) => {
    const known = points.filter(([, value]) => value !== null);
    return known.length === 0 ? `${name}: no values.`
      : `${name}: from ${formatNumber(known[0][1])} to ${formatNumber(known[known.length - 1][1])}.`;
  }).join(" ") + (series.length > 4 ? ` ${series.length - 4} more lines are in the table.` : "");
}

/**
 * Makes a chart of lines. `series` is a list of {name, points: [[x, y or null]...]}; all have the same x. A logarithmic axis leaves
 * zeros out, so counts are to be linear.
 */
function lineChart(title, xTitle, yTitle, series, isLinear = false) {
  const places = series[0].points.map(([place]) => place);
  const values = series.flatMap(({ points }) => points.map(([, value]) => value)).filter((value) => value !== null);
  if (values.length === 0) return make("p", { class: "muted" }, `${title}: no values are recorded.`);
  const positive = values.filter((value) => value > 0);
  const y = makeScale(isLinear || positive.length === 0 ? [0, ...values] : positive, HEIGHT - BOTTOM, TOP);
  const x = makeScale(places, LEFT, WIDTH - RIGHT);
  x.ticks = places.length <= 12 ? [...new Set(places)] : x.ticks;
  const drawing = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${describeLines(series)}` },
    axes(x, y, xTitle, `${yTitle}${y.name === "logarithmic" ? " (log)" : ""}`),
    series.map(({ name, points }, place) => draw("g", { class: `line line-${place % LINE_STYLES}` },
      draw("path", { d: linePath(points, x, y) }),
      points.length > MARKED_POINTS ? [] : points.filter(([, value]) => value !== null && (y.name === "linear" || value > 0)).map(([at, value]) =>
        draw("circle", { cx: x.at(at).toFixed(1), cy: y.at(value).toFixed(1), r: points.length > 40 ? 1 : 2.5 },
          draw("title", {}, `${name}, ${xTitle} ${at}: ${formatNumber(value)}`))))));
  return make("figure", {}, make("figcaption", {}, title), scrolling(title, drawing), legend(series),
    folded("Values as a table", () => makeTable(title, [xTitle, ...series.map(({ name }) => ({ title: name, number: true }))],
      places.map((place, row) => [formatCount(place), ...series.map(({ points }) => formatNumber(points[row][1]))]))));
}

function legend(series) {
  return make("ul", { class: "legend" }, series.map(({ name }, place) => make("li", {},
    draw("svg", { viewBox: "0 0 28 8", class: `line line-${place % LINE_STYLES}`, "aria-hidden": "true" },
      draw("path", { d: "M0 4L28 4" })), name)));
}

/** Makes a chart of bars beside each other, one for each entry of `values`. */
function barChart(title, xTitle, values, label) {
  const most = Math.max(...values, 1), least = Math.min(...values);
  const room = (WIDTH - LEFT - RIGHT) / values.length, last = HEIGHT - BOTTOM;
  const x = makeScale([0, values.length], LEFT, WIDTH - RIGHT);
  const y = makeScale([0, most], last, TOP);
  x.ticks = ticks(0, values.length - 1, 8).filter(Number.isInteger);
  const at = x.at;
  x.at = (value) => at(value + 0.5);
  const axis = axes(x, { ticks: [0, most / 2, most], at: y.at }, xTitle, "");
  axis.querySelectorAll("text[text-anchor=end]").forEach((text, place) => { text.textContent = formatBytes(most * place / 2); });
  return scrolling(title, draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `${title}: between ${formatBytes(least)} and ${formatBytes(most)}.` }, axis,
    values.map((value, place) => draw("rect", { class: "bar-fill", x: (at(place) + room * 0.08).toFixed(2),
      width: Math.max(room * 0.84, 0.6).toFixed(2), y: y.at(value).toFixed(1), height: (last - y.at(value)).toFixed(1) },
      draw("title", {}, `${label(place)}: ${formatBytes(value)}`)))));
}
