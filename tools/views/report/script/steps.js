// Several checkpoints as curves over their steps.

const CURVES = [
  ["norm", "L2 norm", (point) => (point[2] > 0 ? point[0] : null)],
  ["change", "least size of the update", (point) => (point[4] > 0 ? point[3] : null)],
  ["bad", "NaN and infinite elements", (point) => (point[2] > 0 ? point[1] : null)],
];

function historyChart(state, curve) {
  const { history } = report, place = history.states.indexOf(state);
  const [, title, value] = CURVES.find(([key]) => key === curve);
  const steps = history.checkpoints.map((checkpoint) => report.checkpoints[checkpoint].step);
  const haveSteps = steps.every((step) => step !== null && step !== undefined);
  const series = history.groups.map((name, group) => ({
    name, points: steps.map((step, row) => [haveSteps ? step : row + 1, value(history.points[row][group][place])]),
  })).filter(({ points }) => points.some(([, known]) => known !== null));
  if (series.length === 0) return make("p", { class: "muted" }, `No checkpoint has statistics of ${state}.`);
  const along = haveSteps ? "step" : "checkpoint";
  return lineChart(`${title} of ${state} over ${along}s, by group of layers`, along, title, series, curve === "bad");
}

function historySection() {
  const section = makeSection("steps", "Over the steps");
  const chosen = { state: report.history.states[0], curve: "norm" };
  const place = make("div");
  const show = () => place.replaceChildren(historyChart(chosen.state, chosen.curve));
  show();
  append(section, {}, [make("form", { class: "controls", onsubmit: (event) => event.preventDefault() },
    chooser("State", report.history.states.map((state) => [state, state]), (state) => { chosen.state = state; show(); }),
    chooser("Curve", CURVES, (curve) => { chosen.curve = curve; show(); })), place,
  make("p", { class: "muted" }, "The least size of the update is the root of the squared changes of all tensors' norms since the checkpoint before. " +
    "The distance between the two states is at least that, and is not known without reading them.")]);
  return section;
}
