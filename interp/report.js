"use strict";
// Draws the page from its two blocks of data. Text from the model is only ever set as text content.
// A "slot" is the place of a neuron among those whose tokens the page holds; a "cell" is its number in the picture.

const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"]
  .map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const NAMES = {
  specialisation: "specialisation", concepts: "concepts", zmax_sigma: "top logit (sigmas)", coherence: "coherence",
  p1: "top probability", group_mass: "top group's probability", margin: "margin", entropy: "entropy", kurtosis: "kurtosis",
  read_write: "read–write cosine", skew: "skew", norm_up: "length of up row", norm_gate: "length of gate row",
  norm_down: "length of down column",
};
const POLES = ["+", "−"];
const SPACE = "␣";
const SHOWN_MATCHES = 30;
const SHOWN_COMPLETIONS = 12;
const CLIP = { oneSided: [0.5, 0.999], twoSided: [0.005, 0.995] }; // quantiles at the ends of the colour scale
const TWO_SIDED = ["entropy", "read_write"]; // statistics whose low values matter as well
const GAP = 1; // cells between two layers of the picture

const $ = (id) => document.getElementById(id);
const facts = JSON.parse($("facts").textContent);
const F = facts.model.neurons, L = facts.mapped.length;
let columns; // name -> typed array of codes
let slotOf; // cell -> slot, or -1
let words; // the tokens as the search compares them
let rows; // where tokens stand in ids, by token
let firstOfRow; // token number -> its first place in rows

async function unpack() {
  const text = atob($("arrays").textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < packed.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const types = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };
  columns = {};
  for (const [name, { bytes, shape, offset }] of Object.entries(facts.arrays)) {
    columns[name] = new types[bytes](buffer, offset, shape.reduce((a, b) => a * b, 1));
  }
  slotOf = new Int32Array(L * F).fill(-1);
  let cell = 0;
  columns.neurons = Uint32Array.from(columns.gaps, (gap) => (cell += gap));
  columns.neurons.forEach((number, slot) => { slotOf[number] = slot; });
}

// ---- numbers and names ----

function decode(name, code) {
  const { low, high, steps, log } = facts.arrays[name];
  if (code === 0) return NaN;
  const value = low + (code - 1) / steps * (high - low);
  return log ? Math.exp(value) : value;
}

function format(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.1 || size < 5e-7 ? value.toFixed(2) : size >= 0.001 ? value.toFixed(3) : value.toExponential(0);
}

const probability = (p) => (p <= facts.floor * 1.001 ? `<${facts.floor}` : format(p));
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const whole = (n) => n.toLocaleString("en");
const nameOf = (cell) => `L${facts.mapped[Math.floor(cell / F)]}/N${cell % F}`;
const betterPole = (slot) => columns.pole[slot];

function cellOf(text) {
  const match = /^\s*L(\d{1,6})\s*\/?\s*N(\d{1,9})\s*$/i.exec(text);
  const position = match ? facts.mapped.indexOf(Number(match[1])) : -1;
  return position >= 0 && Number(match[2]) < F ? position * F + Number(match[2]) : null;
}

/** The tokens of a pole: their numbers on the page (0 for none) and probabilities. */
function tokensOf(slot, pole) {
  const T = facts.arrays.ids.shape[2], at = (2 * slot + pole) * T;
  return Array.from({ length: T }, (_, i) => ({ number: columns.ids[at + i], p: decode("p", columns.p[at + i]) }))
    .filter(({ number }) => number > 0);
}

// ---- making elements ----

function element(tag, { text, className, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function shape(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const token = (text, wanted = false) => element("bdi", { text, className: wanted ? "token wanted" : "token" });

function tokenList(slot, pole, wanted = new Set()) {
  const found = tokensOf(slot, pole);
  if (!found.length) return [document.createTextNode("(no label)")];
  return found.map(({ number }) => token(facts.tokens[number - 1], wanted.has(number)));
}

function neuronButton(cell) {
  const button = element("button", { type: "button", className: "neuron", text: nameOf(cell) });
  button.addEventListener("click", () => { select(cell); $("neuron").scrollIntoView({ block: "nearest", behavior: "smooth" }); });
  return button;
}

function definitions(list, pairs, wrap = false) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => {
    const parts = [element("dt", { text: name }), element("dd", { text: value })];
    return wrap ? [element("div", {}, ...parts)] : parts;
  }));
}

/** headings: [text, "number" or "" or "optional"]; a cell is text or nodes. */
function fillTable(table, headings, lines) {
  const head = headings.map(([text, className = ""]) => element("th", { text, className, scope: "col" }));
  const body = lines.map((cells) => element("tr", {}, ...cells.map((cell, i) => {
    return element("td", { className: headings[i][1] || "" }, ...(Array.isArray(cell) ? cell : [cell]));
  })));
  table.replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

// ---- the head of the page ----

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

// ---- the picture ----

const picture = { name: "", order: null, columns: 1, size: 1, rowsPerLayer: 1, cursor: -1, chosen: -1 };

function paintPicture() {
  const codes = columns[`picture/${picture.name}`];
  picture.order = $("sorted").checked ? sortedWithinLayers(codes) : null;
  layOut();
  const { width, height } = $("cells"), [low, high] = clipped(codes, TWO_SIDED.includes(picture.name) ? CLIP.twoSided : CLIP.oneSided);
  const image = new ImageData(width, height), palette = Array.from({ length: 256 }, (_, code) => colour((code - low) / Math.max(high - low, 1)));
  for (let cell = 0; cell < L * F; cell++) {
    const code = codes[picture.order ? picture.order[cell] : cell];
    const layer = Math.floor(cell / F), n = cell % F;
    const y = layer * (picture.rowsPerLayer + GAP) + Math.floor(n / picture.columns), x = n % picture.columns;
    image.data.set(code ? [...palette[code], 255] : [128, 128, 128, 90], 4 * (y * width + x));
  }
  $("cells").getContext("2d").putImageData(image, 0, 0);
  $("cells").setAttribute("aria-label", `${NAMES[picture.name]} of ${whole(L * F)} neurons in ${L} layers`);
  $("scale-low").textContent = `≤ ${format(decode(`picture/${picture.name}`, low))}`;
  $("scale-high").textContent = `≥ ${format(decode(`picture/${picture.name}`, high))}`;
  place($("selected"), picture.chosen);
  $("cursor").hidden = true;
}

/** Columns and size of the cells: as large as the height allows. */
function layOut() {
  const width = Math.floor($("cells").parentElement.clientWidth), tallest = width > 600 ? 720 : 1300;
  for (picture.size = 6; picture.size >= 1; picture.size--) {
    picture.columns = Math.max(1, Math.min(F, Math.floor(width / picture.size)));
    picture.rowsPerLayer = Math.ceil(F / picture.columns);
    picture.columns = Math.ceil(F / picture.rowsPerLayer);
    if (picture.size === 1 || L * (picture.rowsPerLayer + GAP) * picture.size <= tallest) break;
  }
  const canvas = $("cells");
  canvas.width = picture.columns;
  canvas.height = L * (picture.rowsPerLayer + GAP) - GAP;
  canvas.style.width = `${canvas.width * picture.size}px`;
  canvas.style.height = `${canvas.height * picture.size}px`;
  const band = (picture.rowsPerLayer + GAP) * picture.size, step = [1, 2, 5, 10, 20, 50, 100].find((n) => n * band >= 14) || 100;
  $("layer-names").replaceChildren(...facts.mapped.flatMap((layer, position) => {
    if (position % step) return [];
    const label = element("span", { text: position ? String(layer) : `L${layer}` });
    label.style.top = `${(position + 0.5) * band}px`;
    return [label];
  }));
}

function sortedWithinLayers(codes) {
  const order = new Uint32Array(L * F);
  for (let layer = 0; layer < L; layer++) {
    const part = order.subarray(layer * F, (layer + 1) * F);
    part.forEach((_, i) => { part[i] = layer * F + i; });
    part.sort((a, b) => codes[b] - codes[a] || a - b);
  }
  return order;
}

/** The codes at two quantiles. */
function clipped(codes, quantiles) {
  const counts = new Uint32Array(256);
  for (const code of codes) if (code) counts[code]++;
  const total = counts.reduce((a, b) => a + b, 0);
  return quantiles.map((quantile) => {
    let below = 0;
    for (let code = 1; code < 256; code++) if ((below += counts[code]) >= quantile * total) return code;
    return 255;
  });
}

function colour(share) {
  const at = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1), i = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[i].map((from, c) => Math.round(from + (at - i) * (VIRIDIS[i + 1][c] - from)));
}

function paintScale() {
  const canvas = $("scale"), context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = `rgb(${colour(x / (canvas.width - 1)).join(" ")})`;
    context.fillRect(x, 0, 1, 1);
  }
}

/** Where a neuron is drawn, as [x, y] in pixels of the canvas's box. */
function spot(cell) {
  const at = picture.order ? picture.order.indexOf(cell) : cell, n = at % F;
  const y = Math.floor(at / F) * (picture.rowsPerLayer + GAP) + Math.floor(n / picture.columns);
  return [n % picture.columns, y].map((v) => (v + 0.5) * picture.size);
}

function place(ring, cell) {
  ring.hidden = cell < 0;
  if (cell < 0) return;
  const [x, y] = spot(cell);
  ring.style.left = `${x}px`;
  ring.style.top = `${y}px`;
}

function cellAt(event) {
  const box = $("cells").getBoundingClientRect();
  const x = Math.floor((event.clientX - box.left) / picture.size), y = Math.floor((event.clientY - box.top) / picture.size);
  const layer = Math.floor(y / (picture.rowsPerLayer + GAP));
  const line = Math.min(y - layer * (picture.rowsPerLayer + GAP), picture.rowsPerLayer - 1);
  const n = line * picture.columns + x;
  if (x < 0 || x >= picture.columns || layer < 0 || layer >= L || n >= F) return -1;
  return picture.order ? picture.order[layer * F + n] : layer * F + n;
}

function point(cell, clientX, clientY) {
  picture.cursor = cell;
  place($("cursor"), cell);
  const tip = $("tip");
  tip.hidden = cell < 0;
  if (cell < 0) return;
  const slot = slotOf[cell], column = `picture/${picture.name}`;
  const lines = [element("p", {}, element("strong", { text: nameOf(cell) }), ` ${NAMES[picture.name]} ${format(decode(column, columns[column][cell]))}`)];
  const poles = slot < 0 ? [] : [betterPole(slot), 1 - betterPole(slot)];
  lines.push(...poles.map((pole) => element("p", {}, `${POLES[pole]} `, ...tokenList(slot, pole).slice(0, 6))));
  if (slot < 0) lines.push(element("p", { className: "note", text: "Its tokens are in the map's folder." }));
  tip.replaceChildren(...lines);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(clientX + 16, innerWidth - width - 4))}px`;
  tip.style.top = `${clientY + 18 + height < innerHeight ? clientY + 18 : Math.max(4, clientY - height - 14)}px`;
}

function moveCursor(event) {
  const leaps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -F, ArrowDown: F, Home: -Infinity, End: Infinity };
  const from = picture.cursor >= 0 ? picture.cursor : Math.max(picture.chosen, 0);
  if (event.key === "Enter" || event.key === " ") select(from);
  else if (event.key === "Escape") return point(-1);
  else if (!(event.key in leaps)) return;
  event.preventDefault();
  let at = (picture.order ? picture.order.indexOf(from) : from) + (event.key in leaps ? leaps[event.key] : 0);
  if (at === Infinity || at === -Infinity) at = Math.floor(from / F) * F + (at > 0 ? F - 1 : 0);
  at = at < 0 || at >= L * F ? (picture.order ? picture.order.indexOf(from) : from) : at;
  const cell = picture.order ? picture.order[at] : at, [x, y] = spot(cell), box = $("cells").getBoundingClientRect();
  point(cell, box.left + x, box.top + y);
}

// ---- one neuron ----

function select(cell) {
  picture.chosen = cell;
  place($("selected"), cell);
  const slot = slotOf[cell];
  $("neuron").replaceChildren(element("h3", { text: nameOf(cell) }), ...(slot < 0 ? roughFacts(cell) : fullFacts(slot)));
}

function fullFacts(slot) {
  const places = Object.keys(facts.rankings).map((name) => `${whole(columns[`place/${name}`][slot] + 1)} by ${name}`);
  const poles = [0, 1].map((pole) => {
    const better = pole === betterPole(slot);
    const items = tokensOf(slot, pole).map(({ number, p }) => {
      return element("li", {}, token(facts.tokens[number - 1]), element("span", { className: "number", text: probability(p) }));
    });
    const flags = Object.keys(facts.flag_bits).filter((name) => columns.flags[2 * slot + pole] & facts.flag_bits[name]);
    return element("div", {}, element("h4", { text: `${POLES[pole]} pole${better ? " (better)" : ""}`, className: better ? "better" : "" }),
      element("ol", {}, ...items), ...(items.length ? [] : ["(no label)"]), ...(flags.length ? [element("p", { className: "note", text: `Flags: ${flags.join(", ")}` })] : []));
  });
  const lines = facts.pole_detail.map((name) => [NAMES[name], ...[0, 1].map((pole) => format(decode(name, columns[name][2 * slot + pole])))]);
  for (const name of facts.neuron_detail) {
    const value = decode(name, columns[name][slot]);
    lines.push([NAMES[name], format(value), name === "skew" ? format(-value) : ""]);
  }
  const table = element("table");
  fillTable(table, [["statistic"], ["+", "number"], ["−", "number"]], lines);
  return [element("p", { className: "note", text: `Place ${places.join(", ")}.` }), element("div", { className: "poles" }, ...poles), table];
}

function roughFacts(cell) {
  const table = element("table");
  fillTable(table, [["at its better pole"], ["", "number"]], Object.keys(facts.statistics).map((name) => {
    return [NAMES[name], format(decode(`picture/${name}`, columns[`picture/${name}`][cell]))];
  }));
  return [element("p", { className: "note", text: `Its tokens are in the map's folder: jaxllm show DIR ${nameOf(cell)}` }), table];
}

// ---- search ----

const plain = (text) => text.replaceAll(SPACE, " ");
const folded = (text) => plain(text).replace(/^ +/, "").toLowerCase();

/** Sorts the places of all tokens by token, once. */
function buildIndex() {
  const { ids } = columns, count = facts.tokens.length;
  firstOfRow = new Uint32Array(count + 2);
  for (const number of ids) firstOfRow[number + 1]++;
  for (let n = 1; n < firstOfRow.length; n++) firstOfRow[n] += firstOfRow[n - 1];
  const next = firstOfRow.slice();
  rows = new Uint32Array(ids.length);
  ids.forEach((number, at) => { rows[next[number]++] = at; });
  words = facts.tokens.map(folded);
}

const uses = (number) => firstOfRow[number + 1] - firstOfRow[number];

function search() {
  const query = $("query").value, exact = $("spelling").value === "exact", text = facts.tokens, group = columns["token/group"];
  const cell = cellOf(query);
  if (cell !== null) select(cell);
  if (!query.trim() || cell !== null) return showMatches([], "", []);
  if (!rows) buildIndex();
  const key = folded(query), equal = [], begun = [];
  words.forEach((word, i) => {
    if (exact ? plain(text[i]) === plain(query) : word === key) equal.push(i);
    else if (key && word.startsWith(key)) begun.push(i);
  });
  const groups = new Set(equal.map((i) => group[i]));
  const wanted = exact ? equal : text.map((_, i) => i).filter((i) => groups.has(group[i]));
  const numbers = (wanted.length ? wanted : exact ? [] : begun).map((i) => i + 1);
  begun.sort((a, b) => uses(b + 1) - uses(a + 1));
  showMatches(numbers, wanted.length ? "" : "No token is exactly this; these begin with it. ", begun.filter((i) => !groups.has(group[i])));
}

function showMatches(numbers, note, begun) {
  const sums = new Map(), T = facts.arrays.ids.shape[2];
  for (const number of numbers) {
    for (let i = firstOfRow[number]; i < firstOfRow[number + 1]; i++) {
      const row = Math.floor(rows[i] / T);
      sums.set(row, (sums.get(row) || 0) + decode("p", columns.p[rows[i]]));
    }
  }
  const found = [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]), wanted = new Set(numbers);
  const asked = $("query").value.trim() !== "";
  $("found").textContent = numbers.length
    ? `${note}${whole(found.length)} poles have it among their first ${T} tokens${found.length > SHOWN_MATCHES ? `; the best ${SHOWN_MATCHES}` : ""}.`
    : asked && cellOf($("query").value) === null ? "No neuron on this page has this token among its first ones." : "";
  $("matches").hidden = !found.length;
  fillTable($("matches"), [["neuron"], ["pole"], ["p", "number"], ["layer", "number optional"], ["place", "number optional"], ["top tokens"]],
    found.slice(0, SHOWN_MATCHES).map(([row, p]) => {
      const slot = row >> 1, cell = columns.neurons[slot];
      return [neuronButton(cell), POLES[row & 1], probability(Math.min(p, 1)), String(facts.mapped[Math.floor(cell / F)]),
        whole(columns["place/specialisation"][slot] + 1), tokenList(slot, row & 1, wanted)];
    }));
  const seen = new Set(), shown = begun.filter((i) => !seen.has(columns["token/group"][i]) && seen.add(columns["token/group"][i]));
  $("completions").replaceChildren(...shown.slice(0, SHOWN_COMPLETIONS).map((i) => {
    const button = element("button", { type: "button" }, token(facts.tokens[i]), element("span", { className: "count", text: whole(uses(i + 1)) }));
    button.addEventListener("click", () => { $("query").value = plain(facts.tokens[i]); search(); $("query").focus(); });
    return button;
  }));
}

// ---- charts ----

const WIDTH_LIMITS = [260, 620], HEIGHT = 240, MARGIN = { left: 46, right: 10, top: 30, bottom: 34 };

/** A chart of lines: [{ name, kind, dashed, area, values }], values over x; `show` writes a tick of y. */
function drawChart(box, { x, xName, series, show, from, spread }) {
  const width = Math.max(WIDTH_LIMITS[0], Math.min(WIDTH_LIMITS[1], box.clientWidth)), { left, right, top, bottom } = MARGIN;
  const values = series.flatMap((line) => line.values).filter((v) => v !== null);
  const ticks = niceTicks(from === undefined ? Math.min(...values) : from, Math.max(...values)), [low, high] = [ticks[0], ticks.at(-1)];
  const xLow = x[0], xHigh = Math.max(x.at(-1), xLow + 1e-9);
  const px = (v) => left + (v - xLow) / (xHigh - xLow) * (width - left - right);
  const py = (v) => top + (high - v) / (high - low) * (HEIGHT - top - bottom);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": series.map((line) => line.name).join(", ") });
  for (const tick of ticks) {
    svg.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: py(tick), y2: py(tick) }));
    svg.append(shape("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, show(tick)));
  }
  for (const tick of niceTicks(xLow, xHigh, Math.floor(width / 50)).filter((v) => v >= xLow - 1e-9 && v <= xHigh + 1e-9 && (spread || Number.isInteger(v)))) {
    svg.append(shape("text", { x: px(tick), y: HEIGHT - bottom + 15, "text-anchor": "middle" }, spread ? spread(tick) : tick));
  }
  svg.append(shape("text", { x: (left + width - right) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xName));
  let legend = 8;
  for (const { name, kind, dashed, area, values: ys } of series) {
    const points = ys.flatMap((y, i) => (y === null ? [] : [`${px(x[i]).toFixed(1)},${py(y).toFixed(1)}`]));
    if (area) svg.append(shape("polygon", { class: "area", points: [`${px(x[0])},${py(low)}`, ...points, `${px(x.at(-1))},${py(low)}`].join(" ") }));
    svg.append(shape("polyline", { class: `line ${kind}${dashed ? " dashed" : ""}`, points: points.join(" ") }));
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

function showCharts() {
  const curve = facts.curves[picture.name], title = NAMES[picture.name], real = curve.log ? Math.exp : (v) => v;
  const show = (v) => format(real(v)), sides = ["neurons", "control"].filter((side) => curve[side]);
  if (facts.control) {
    $("count-title").textContent = "Share of neurons that stand out";
    const share = (name, of) => facts.counts.map((count) => 100 * count[name] / (of ? count.neurons : 1));
    drawChart($("count-chart"), {
      x: facts.mapped, xName: "layer", show: (v) => `${v} %`, from: 0, series: [
        { name: "score", kind: "neurons", values: share("above_control", true) },
        { name: "both statistics", kind: "neurons", dashed: true, values: share("specialised", true) },
        { name: "control's score", kind: "control", values: share("above_control_by_chance") },
      ],
    });
  }
  $("curve-title").textContent = `${title[0].toUpperCase()}${title.slice(1)} by layer`;
  drawChart($("curve-chart"), {
    x: facts.mapped, xName: "layer", show, series: sides.flatMap((side) => [
      { name: `${side} 99 %`, kind: side, dashed: true, values: curve[side].quantiles[1] },
      { name: "median", kind: side, values: curve[side].quantiles[0] },
    ]),
  });
  const chosen = $("layer").value, bins = curve.neurons.histogram[0].length;
  $("histogram-title").textContent = `Histogram: ${title}`;
  drawChart($("histogram-chart"), {
    x: Array.from({ length: bins }, (_, i) => curve.low + (i + 0.5) / bins * (curve.high - curve.low)), xName: title + (curve.log ? " (logarithmic)" : ""),
    show: (v) => `${v} %`, from: 0, spread: show, series: sides.map((side) => {
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

// ---- start ----

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
