// Small charts: lines over layers, and bars of a histogram.

import { format, shape } from "./dom.js";

const WIDTH = 560, HEIGHT = 230, MARGIN = { left: 48, right: 10, top: 28, bottom: 34 };

function ticks(low, high, count) {
  const rough = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function frame({ xs, xName, low, high, show = format, label }) {
  const { left, right, top, bottom } = MARGIN, xLow = xs[0], xHigh = xs.at(-1) > xLow ? xs.at(-1) : xLow + 1;
  const px = (v) => left + (v - xLow) / (xHigh - xLow) * (WIDTH - left - right);
  const py = (v) => top + (high - v) / (high - low || 1) * (HEIGHT - top - bottom);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const tick of ticks(low, high, 5)) {
    svg.append(shape("line", { class: "axis", x1: left, x2: WIDTH - right, y1: py(tick), y2: py(tick) }),
      shape("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, show(tick)));
  }
  for (const tick of ticks(xLow, xHigh, 8)) svg.append(shape("text", { x: px(tick), y: HEIGHT - bottom + 15, "text-anchor": "middle" }, format2(tick)));
  svg.append(shape("text", { x: (left + WIDTH - right) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xName));
  return { svg, px, py };
}

const format2 = (v) => (Number.isInteger(v) ? String(v) : format(v));

/** series: [{ name, kind, dashed, values, low, high }] over xs; null where there is nothing. */
export function lines({ xs, xName, series, show, from, to }) {
  const all = series.flatMap((line) => [...line.values, ...(line.low || []), ...(line.high || [])]).filter((v) => v !== null && Number.isFinite(v));
  const low = from ?? Math.min(...all), high = to ?? Math.max(...all);
  const { svg, px, py } = frame({ xs, xName, low, high, show, label: series.map((line) => line.name).join(", ") });
  let legend = MARGIN.left;
  for (const { name, kind, dashed, values, low: lows, high: highs } of series) {
    if (lows) {
      const edge = [...xs.map((x, i) => [x, highs[i]]), ...xs.map((x, i) => [x, lows[i]]).reverse()].filter(([, v]) => v !== null);
      svg.append(shape("polygon", { class: "band", points: edge.map(([x, v]) => `${px(x)},${py(v)}`).join(" ") }));
    }
    const points = values.flatMap((v, i) => (v === null || !Number.isFinite(v) ? [] : [`${px(xs[i])},${py(v)}`]));
    svg.append(shape("polyline", { class: `line ${kind}${dashed ? " dashed" : ""}`, points: points.join(" ") }));
    if (points.length === 1) svg.append(shape("circle", { class: `line ${kind}`, cx: points[0].split(",")[0], cy: points[0].split(",")[1], r: 3 }));
    svg.append(shape("line", { class: `line ${kind}${dashed ? " dashed" : ""}`, x1: legend, x2: legend + 18, y1: 12, y2: 12 }), shape("text", { x: legend + 23, y: 16 }, name));
    legend += 40 + 6.2 * name.length;
  }
  return svg;
}

/** Bars between edges, one fewer than edges. */
export function bars({ edges, counts, xName }) {
  const { svg, px, py } = frame({ xs: edges, xName, low: 0, high: Math.max(...counts, 1), show: String, label: xName });
  counts.forEach((count, i) => {
    const width = Math.max(1, px(edges[i + 1]) - px(edges[i]) - 1);
    if (count) svg.append(shape("rect", { class: "bar", x: px(edges[i]), y: py(count), width, height: Math.max(1, py(0) - py(count)) }));
  });
  return svg;
}
