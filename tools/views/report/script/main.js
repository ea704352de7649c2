// Puts the sections together.

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  document.getElementById("theme").setAttribute("aria-label", `Use ${theme === "dark" ? "light" : "dark"} colours`);
}

function start() {
  const names = report.checkpoints.map(checkpointName);
  const title = names.length === 1 ? names[0] : `${names[0]} and ${plural(names.length - 1, "more checkpoint")}`;
  document.title = visible(`${title} – UniShard report`);
  document.getElementById("title").replaceChildren(nameCode(names[0]), names.length > 1 ? ` and ${plural(names.length - 1, "more checkpoint")}` : "");
  document.getElementById("made").textContent = visible(`Made by ${report.program} from tables and statistics. Sizes are in powers of 1024.`);
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("theme").addEventListener("click", () =>
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  const sections = [overviewSection(), findingsSection()];
  if (report.history) sections.push(historySection());
  if (report.comparison) sections.push(comparisonSection());
  if (details) sections.push(layersSection(), ownershipSection(), tensorsSection());
  document.getElementById("main").append(...sections);
}

start();
