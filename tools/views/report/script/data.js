"use strict";
// What the program embedded, and the tensors as objects.

const report = JSON.parse(document.getElementById("data").textContent);

// Values of the column `sameness`.
const EQUAL = 0, DIFFERENT = 1, UNKNOWN = 2, ONLY_FIRST = 3;

// Bits of the column `flags`.
const FROZEN = 1, DERIVED = 2;

/** Returns the name whose texts are those of a pattern, with `numbers` between them. */
function joinName(texts, numbers) {
  return texts.reduce((name, text, place) => name + numbers[place - 1] + text);
}

/** Returns one object per tensor from the columns; tensor_columns.hpp describes them. */
function decodeTensors(columns) {
  const names = columns.names.map(([pattern, ...numbers]) => ({
    pattern, numbers, text: joinName(columns.patterns[pattern], numbers),
  }));
  const shapes = columns.shapes.map((shape) => ({
    text: `[${shape.join(", ")}]`, elements: shape.reduce((product, size) => product * size, 1),
  }));
  const nan = new Map(columns.nan), inf = new Map(columns.inf);
  return columns.name.map((place, index) => {
    const name = names[place], shape = shapes[columns.shape[index]];
    const [dtype, size] = columns.dtypes[columns.dtype[index]];
    const tensor = {
      index, name: name.text, pattern: name.pattern, numbers: name.numbers,
      state: columns.states[columns.state[index]], dtype, shape: shape.text,
      elements: shape.elements, bytes: shape.elements * size, group: columns.group[index],
      isFrozen: (columns.flags[index] & FROZEN) !== 0, isDerived: (columns.flags[index] & DERIVED) !== 0,
      crc: columns.crc[index], norm: columns.norm[index], min: columns.min[index], max: columns.max[index],
      nan: nan.get(index) || 0, inf: inf.get(index) || 0,
      sameness: columns.sameness[index], outliers: [],
    };
    return withMeasures(tensor);
  });
}

/** Adds what follows from norm, extremes and counts: root mean square, largest magnitude and its ratio to the former. */
function withMeasures(item) {
  const finite = item.elements - item.nan - item.inf;
  item.bad = item.nan + item.inf;
  item.rms = item.norm === null || finite <= 0 ? null : item.norm / Math.sqrt(finite);
  item.largest = item.min === null ? null : Math.max(Math.abs(item.min), Math.abs(item.max));
  item.peak = item.largest && item.rms ? item.largest / item.rms : null;
  return item;
}

/** Returns the smallest and the largest of any number of values. */
function extent(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

/** Returns one item for several tensors of one state, with the measures of all their elements. */
function combine(tensors) {
  const known = tensors.filter((one) => one.norm !== null);
  const bounded = tensors.filter((one) => one.min !== null);
  const sum = (key) => tensors.reduce((total, one) => total + one[key], 0);
  return withMeasures({
    ...tensors[0], elements: sum("elements"), bytes: sum("bytes"), nan: sum("nan"), inf: sum("inf"), crc: null,
    norm: known.length ? rootOfSquares(known.map((one) => one.norm)) : null,
    min: bounded.length ? extent(bounded.map((one) => one.min))[0] : null,
    max: bounded.length ? extent(bounded.map((one) => one.max))[1] : null,
    sameness: new Set(tensors.map((one) => one.sameness)).size === 1 ? tensors[0].sameness : null,
    outliers: tensors.flatMap((one) => one.outliers),
  });
}

/** Returns the root of the sum of the squares of any number of values. */
function rootOfSquares(values) {
  return Math.sqrt(values.reduce((total, value) => total + value * value, 0));
}

const tensors = report.tensors ? decodeTensors(report.tensors) : [];
for (const outlier of report.outliers) tensors[outlier.tensor].outliers.push(outlier);
const details = report.details === null ? null : report.checkpoints[report.details];
