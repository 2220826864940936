// The picture of all neurons, and the panel of the chosen one.

const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"]
  .map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const CLIP = { oneSided: [0.5, 0.999], twoSided: [0.005, 0.995] }; // quantiles at the ends of the colour scale
const TWO_SIDED = ["entropy", "read_write"]; // statistics whose low values matter as well
const GAP = 1; // cells between two layers of the picture

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
