// Curves by layer and histograms, neurons against control.

const WIDTH_LIMITS = [260, 620], HEIGHT = 240, MARGIN = { left: 46, right: 10, top: 30, bottom: 34 };

/**
 * A chart of lines [{ name, kind, dashed, area, values }], values over x. An axis is { ticks, show }: where its marks lie, as a
 * function of its ends, and how they are written.
 */
function drawChart(box, { x, xName, xAxis = LAYERS, yAxis, series, from }) {
  const width = Math.max(WIDTH_LIMITS[0], Math.min(WIDTH_LIMITS[1], box.clientWidth)), { left, right, top, bottom } = MARGIN;
  const values = series.flatMap((line) => line.values).filter((v) => v !== null);
  if (!values.length) values.push(0, 1);
  const least = from === undefined ? Math.min(...values) : from, ticks = yAxis.ticks(least, Math.max(...values), 5);
  const [low, high] = [Math.min(ticks[0], least), Math.max(ticks.at(-1), ...values)];
  const xLow = x[0], xHigh = Math.max(x.at(-1), xLow + 1e-9);
  const px = (v) => left + (v - xLow) / (xHigh - xLow) * (width - left - right);
  const py = (v) => top + (high - v) / (high - low) * (HEIGHT - top - bottom);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": series.map((line) => line.name).join(", ") });
  for (const tick of ticks) {
    svg.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: py(tick), y2: py(tick) }));
    svg.append(shape("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, yAxis.show(tick)));
  }
  for (const tick of xAxis.ticks(xLow, xHigh, Math.floor(width / 50)).filter((v) => v >= xLow - 1e-9 && v <= xHigh + 1e-9)) {
    svg.append(shape("text", { x: px(tick), y: HEIGHT - bottom + 15, "text-anchor": "middle" }, xAxis.show(tick)));
  }
  svg.append(shape("text", { x: (left + width - right) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xName));
  let legend = 8;
  for (const { name, kind, dashed, area, values: ys } of series) {
    const points = ys.flatMap((y, i) => (y === null ? [] : [`${px(x[i]).toFixed(1)},${py(y).toFixed(1)}`]));
    if (area) svg.append(shape("polygon", { class: "area", points: [`${px(x[0])},${py(low)}`, ...points, `${px(x.at(-1))},${py(low)}`].join(" ") }));
    svg.append(shape("polyline", { class: `line ${kind}${dashed ? " dashed" : ""}`, points: points.join(" ") }));
    if (points.length === 1) svg.append(shape("circle", { class: `line ${kind}`, cx: points[0].split(",")[0], cy: points[0].split(",")[1], r: 3 }));
    svg.append(shape("line", { class: `line ${kind}${dashed ? " dashed" : ""}`, x1: legend, x2: legend + 18, y1: 12, y2: 12 }));
    svg.append(shape("text", { x: legend + 22, y: 16 }, name));
    legend += 36 + 6 * name.length;
  }
  box.replaceChildren(svg);
}

function niceTicks(low, high, count = 5) {
  const span = high > low ? high - low : Math.abs(high) || 1, rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Logarithms of 1, 2 and 5 times the powers of ten, or of the powers alone. */
function logarithmicTicks(low, high, count) {
  const powers = Array.from({ length: 8 }, (_, i) => 10 ** (i - 7));
  const choices = [[1, 2, 5], [1, 3], [1]].map((steps) => powers.flatMap((power) => steps.map((n) => Math.log(n * power))));
  const inside = choices.map((ticks) => ticks.filter((v) => v >= low - 1e-9 && v <= high + 1e-9));
  const chosen = inside.find((ticks) => ticks.length <= count + 1) || inside.at(-1);
  return chosen.length ? chosen : niceTicks(low, high, count);
}

const LAYERS = { ticks: (...ends) => niceTicks(...ends).filter(Number.isInteger), show: String };
const PERCENT = { ticks: niceTicks, show: (v) => `${v} %` };
const PLAIN = { ticks: niceTicks, show: format };
const LOGARITHMIC = { ticks: logarithmicTicks, show: (v) => String(Number(Math.exp(v).toPrecision(2))) };

function showCharts() {
  const curve = facts.curves[picture.name], title = NAMES[picture.name], axis = curve.log ? LOGARITHMIC : PLAIN;
  const sides = ["neurons", "control"].filter((side) => curve[side]);
  if (facts.control) {
    $("count-title").textContent = "Share of neurons that stand out";
    const share = (name, of) => facts.counts.map((count) => 100 * count[name] / (of ? count.neurons : 1));
    drawChart($("count-chart"), {
      x: facts.mapped, xName: "layer", yAxis: PERCENT, from: 0, series: [
        { name: "score", kind: "neurons", values: share("above_control", true) },
        { name: "both statistics", kind: "neurons", dashed: true, values: share("specialised", true) },
        { name: "control's score", kind: "control", values: share("above_control_by_chance") },
      ],
    });
  }
  $("curve-title").textContent = `${title[0].toUpperCase()}${title.slice(1)} by layer`;
  drawChart($("curve-chart"), {
    x: facts.mapped, xName: "layer", yAxis: axis, series: sides.flatMap((side) => [
      { name: `${side} 99 %`, kind: side, dashed: true, values: curve[side].quantiles[1] },
      { name: "median", kind: side, values: curve[side].quantiles[0] },
    ]),
  });
  const chosen = $("layer").value, bins = curve.neurons.histogram[0].length;
  $("histogram-title").textContent = `Histogram: ${title}`;
  drawChart($("histogram-chart"), {
    x: Array.from({ length: bins }, (_, i) => curve.low + (i + 0.5) / bins * (curve.high - curve.low)), xName: title + (curve.log ? " (logarithmic)" : ""),
    xAxis: axis, yAxis: PERCENT, from: 0, series: sides.map((side) => {
      const layers = chosen === "all" ? curve[side].histogram : [curve[side].histogram[Number(chosen)]];
      const counts = layers.reduce((sum, layer) => sum.map((n, i) => n + layer[i])), total = counts.reduce((a, b) => a + b, 0) || 1;
      return { name: side, kind: side, area: side === "neurons", values: counts.map((n) => 100 * n / total) };
    }),
  });
}

function showCounts() {
  $("control-note").textContent = facts.control
    ? `Control: random rows with each layer's statistics (${facts.control.kind}, ${facts.control.rows} a layer). A neuron stands out when a pole's score, `
      + "or both its top logit in sigmas and its coherence, exceed 99 % of them; control rows, with two poles each, do so about twice in a hundred by score."
    : "The map has no control rows, so nothing here says what chance would reach: run jaxllm map with --control to add them.";
  $("count-details").hidden = $("count-title").parentElement.hidden = !facts.control;
  fillTable($("counts"), [["layer", "number"], ["score", "number"], ["share", "number"], ["by chance", "number"], ["both statistics", "number"], ["by chance", "number"]],
    facts.counts.map((c) => [String(c.layer), whole(c.above_control), percent(c.above_control / c.neurons), percent(c.above_control_by_chance),
      whole(c.specialised), percent(c.specialised_by_chance)]));
}
