// Fills the page and starts it; the last of its scripts.

function showHeader() {
  const { model, settings, control, agreement } = facts;
  $("summary").textContent = `The words that the ${settings.site} rows of ${model.name} point at: every row of the MLP, in both `
    + `directions, decoded through the output head over ${whole(model.vocabulary)} tokens.`;
  const figures = [["neurons", whole(L * F)], ["layers × neurons", `${L} × ${whole(F)}`],
    ["time to decode", `${format(facts.seconds)} s`], ["neurons per second", whole(Math.round(L * F / facts.seconds))]];
  if (control) {
    const sum = (name) => facts.counts.reduce((total, count) => total + count[name], 0);
    figures.push(["score above 99 % of control", whole(sum("above_control"))], ["specialised (sigmas and coherence)", whole(sum("specialised"))]);
  }
  if (agreement && agreement.rows) figures.push(["same top token in float32", percent(agreement.top1)]);
  figures.push(["of the vocabulary labels a neuron", percent(facts.coverage)]);
  definitions($("figures"), figures, true);
  const masks = Object.keys(settings).filter((name) => name.startsWith("mask_"));
  const drawn = control ? `${control.kind}, ${control.rows} rows a layer, seed ${control.seed}` : "none";
  $("settings").textContent = [
    ...["site", "norm", "fold_input_norm", "score", "top_k", "dtype"].map((name) => `${name} ${settings[name]}`), "sign both",
    ...masks.map((name) => `${name} ${settings[name] ? "on" : "off"}`), `control ${drawn}`,
  ].join(" · ");
  const entries = [...Object.entries(settings), ["control", drawn], ["layers mapped", `${L} of ${model.layers}`], ["model width", whole(model.width)],
    ["device", `${facts.device.count} × ${facts.device.kind} (${facts.device.platform})`], ["weights_sha256", facts.weights_sha256],
    ...Object.entries(facts.versions)];
  definitions($("made"), entries.map(([name, value]) => [name, String(value)]));
}

function showLabels() {
  fillTable($("classes"), [["class"], ["share", "number"]], Object.entries(facts.classes).map(([name, share]) => [name, percent(share)]));
  const flags = Object.entries(facts.flags).map(([name, count]) => `${name} ${whole(count)}`).join(", ");
  $("label-note").textContent = `${percent(facts.coverage)} of the allowed tokens label a neuron at either pole. Flagged neurons: ${flags}.`;
  $("frequent").replaceChildren(...facts.frequent.map(([text, count]) => {
    return element("span", {}, token(text), element("span", { className: "count", text: whole(count) }));
  }));
  const held = columns.neurons.length;
  $("kept").textContent = held === L * F
    ? `The page holds the first ${facts.arrays.ids.shape[2]} tokens of each pole; the map's folder holds ${facts.settings.top_k}, and every number unrounded.`
    : `The picture and the curves are of all ${whole(L * F)} neurons; tokens, search and tables are of the ${whole(held)} that come first in a ranking. `
      + "For the others use jaxllm find and jaxllm show on the map's folder.";
}

function showBest() {
  for (const name of Object.keys(facts.rankings)) {
    $(`note-${name}`).textContent = `${facts.rankings[name][0].toUpperCase()}${facts.rankings[name].slice(1)}.`;
    const best = [];
    columns[`place/${name}`].forEach((place, slot) => { if (place < facts.best) best[place] = slot; });
    fillTable($(`best-${name}`), [["neuron"], ["pole"], ["p", "number"], ["coherence", "number optional"], ["sigmas", "number optional"], ["top tokens"]],
      best.filter((slot) => slot !== undefined).map((slot) => {
        const pole = betterPole(slot), at = 2 * slot + pole;
        const numbers = ["p1", "coherence", "zmax_sigma"].map((column) => format(decode(column, columns[column][at])));
        return [neuronButton(columns.neurons[slot]), POLES[pole], ...numbers, tokenList(slot, pole)];
      }));
  }
}

function chooseStatistic() {
  picture.name = $("statistic").value;
  const text = facts.statistics[picture.name];
  $("statistic-note").textContent = `${text[0].toUpperCase()}${text.slice(1)}${picture.name in facts.rankings ? " (0 to 1, a mean of percentiles)" : ""}. Each neuron at its better pole.`;
  paintPicture();
  showCharts();
}

function listen() {
  $("statistic").addEventListener("change", chooseStatistic);
  $("sorted").addEventListener("change", paintPicture);
  $("layer").addEventListener("change", showCharts);
  $("query").addEventListener("input", search);
  $("spelling").addEventListener("change", search);
  $("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  const cells = $("cells");
  cells.addEventListener("pointermove", (event) => point(cellAt(event), event.clientX, event.clientY));
  cells.addEventListener("pointerleave", () => point(-1));
  cells.addEventListener("blur", () => point(-1));
  cells.addEventListener("click", (event) => {
    const cell = cellAt(event);
    point(cell, event.clientX, event.clientY);
    if (cell >= 0) select(cell);
  });
  cells.addEventListener("keydown", moveCursor);
  addEventListener("scroll", () => point(-1), { passive: true });
  addEventListener("hashchange", () => { const cell = cellOf(location.hash.slice(1)); if (cell !== null) select(cell); });
  let drawn = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== drawn) requestAnimationFrame(() => { drawn = innerWidth; paintPicture(); showCharts(); });
  });
}

async function start() {
  await unpack();
  $("statistic").replaceChildren(...Object.keys(facts.statistics).map((name) => element("option", { value: name, text: NAMES[name] })));
  $("layer").replaceChildren(element("option", { value: "all", text: "all layers" }),
    ...facts.mapped.map((layer, position) => element("option", { value: String(position), text: `layer ${layer}` })));
  showHeader();
  showCounts();
  showBest();
  showLabels();
  paintScale();
  chooseStatistic();
  listen();
  const asked = cellOf(location.hash.slice(1)), best = columns["place/concepts"].indexOf(0);
  select(asked === null ? columns.neurons[Math.max(best, 0)] : asked);
}

start().catch((error) => {
  document.body.prepend(element("p", { className: "notice", role: "alert", text: `This page could not be drawn: ${error.message}. It needs a browser of 2023 or newer.` }));
});
