// All neurons at once: layer by layer, coloured by a statistic or a search; to be zoomed, moved, and followed as links.

import { get, getBytes, place, stay } from "./api.js";
import { NAMES, POLES, element, format, nameOf, neuronFrom, neuronHref, note, select, tip, token, whole } from "./dom.js";

const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"]
  .map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const GAP = 1; // empty lines between two layers
const GUTTER = 34; // pixels on the left for the numbers of the layers
const MOST_ZOOM = 64; // pixels of a neuron, or four times what fits
const FEW = 3000; // neurons found by a search that are marked with rings

export function show(root, path, asked, facts) {
  const L = facts.layers.length, F = facts.model.neurons, labels = new Map();
  const state = { codes: null, scale: null, image: null, columns: 1, perLayer: 1, size: 1, x: 0, y: 0, cursor: -1, asked: { ...asked } };
  let loading = null, pending = 0, drag = null, asking = 0;
  const pointers = new Map();

  const choice = select([...Object.keys(facts.statistics).map((name) => [name, NAMES[name] || name]), ["", "a search"]],
    asked.q ? "" : asked.by in facts.statistics ? asked.by : "specialisation", { "aria-label": "Colour", id: "statistic" });
  const field = element("input", { type: "search", "aria-label": "Search in the picture", placeholder: "a word", maxlength: "200" });
  const way = select([["word", "word"], ["token", "token"], ["regex", "regular expression"]], asked.q ? asked.by || "word" : "word", { "aria-label": "Search by" });
  field.value = asked.q || "";
  const about = note(""), failure = note("", "error");
  const canvas = element("canvas", { tabindex: "0", role: "img", "aria-describedby": "help" });
  const spot = element("a", { id: "spot", tabindex: "-1", draggable: "false", hidden: "" });
  const stage = element("div", { id: "stage" }, canvas, spot);
  const button = (text, label, act) => {
    const node = element("button", { type: "button", text, "aria-label": label });
    node.addEventListener("click", act);
    return node;
  };
  const low = element("span"), high = element("span"), bar = element("canvas", { id: "scale", width: "160", height: "1" });
  root.append(element("h1", { text: "Every neuron, layer by layer" }),
    element("div", { className: "controls" }, element("label", {}, "Colour ", choice), field, way,
      button("+", "Zoom in", () => zoom(1.6)), button("−", "Zoom out", () => zoom(1 / 1.6)), button("fit", "Show all", fit)),
    about, failure, stage, element("div", { className: "scale" }, low, bar, high),
    element("p", { id: "help", className: "note", text: "One cell per neuron, one band per layer. Wheel or pinch to zoom, drag to move; click a cell, "
      + "or go with the arrow keys and press Enter, to open its neuron. + and − zoom, 0 shows all." }));

  function searching() { field.hidden = way.hidden = choice.value !== ""; }

  async function load() {
    if (loading) loading.abort();
    loading = new AbortController();
    const text = choice.value === "" ? field.value : "";
    const ask = choice.value === "" ? { q: text, by: way.value === "word" ? "" : way.value } : { by: choice.value };
    state.asked = ask;
    remember();
    searching();
    failure.textContent = "";
    if (choice.value === "" && !text) { about.textContent = "Type what to look for."; return; }
    try {
      const found = await getBytes("picture", choice.value === "" ? { q: text, by: way.value } : { statistic: choice.value }, loading.signal);
      state.codes = found.codes;
      state.scale = found.scale;
      paint();
    } catch (error) {
      if (error.name !== "AbortError") failure.textContent = error.message;
    }
  }

  const value = (code) => {
    const { low: from, high: to, log } = state.scale, v = from + (code - 1) / 254 * (to - from);
    return code ? (log ? Math.exp(v) : v) : NaN;
  };

  /** The cells as an image, one pixel each, in as many columns as fit the stage's shape. */
  function paint() {
    const width = Math.max(60, stage.clientWidth - GUTTER), height = stage.clientHeight;
    let best = null;
    for (let per = 1; per <= F; per++) {
      const columns = Math.ceil(F / per), size = Math.min(width / columns, height / (L * (per + GAP) - GAP));
      if (best && size < best.size) break;
      best = { size, per, columns };
    }
    const kept = state.image ? centre() : null;
    Object.assign(state, { columns: best.columns, perLayer: best.per, fitted: best.size });
    const searched = choice.value === "", codes = state.codes, [first, last] = searched ? [1, 255] : clipped(codes);
    const image = new ImageData(state.columns, L * (best.per + GAP) - GAP);
    const palette = Array.from({ length: 256 }, (_, code) => colour((code - first) / Math.max(last - first, 1)));
    for (let cell = 0; cell < L * F; cell++) {
      const [x, y] = at(cell), code = codes[cell];
      image.data.set(code ? [...palette[code], 255] : [128, 128, 128, searched ? 60 : 90], 4 * (y * state.columns + x));
    }
    state.image = new OffscreenCanvas(image.width, image.height);
    state.image.getContext("2d").putImageData(image, 0, 0);
    const found = searched ? codes.reduce((sum, code) => sum + (code > 0), 0) : 0;
    state.marked = searched && found <= FEW ? Array.from(codes.keys()).filter((cell) => codes[cell]) : [];
    about.textContent = searched ? `${whole(found)} neurons have it among their first tokens; coloured by probability.`
      : `${upper(facts.statistics[choice.value])}; of each neuron's better pole. Grey: no label.`;
    canvas.setAttribute("aria-label", `${searched ? `Search for ${field.value}` : NAMES[choice.value]} of ${whole(L * F)} neurons in ${L} layers`);
    low.textContent = found || !searched ? `≤ ${format(value(first))}` : "";
    high.textContent = found || !searched ? `≥ ${format(value(last))}` : "";
    if (kept) look(kept.cell, state.size / kept.fitted > 1.01 ? state.size : state.fitted);
    else restore();
    draw();
  }

  function clipped(codes) {
    const counts = new Uint32Array(256), two = facts.two_sided.includes(choice.value);
    for (const code of codes) if (code) counts[code]++;
    const total = counts.reduce((a, b) => a + b, 0);
    return (two ? [0.005, 0.995] : [0.5, 0.999]).map((quantile) => {
      let below = 0;
      for (let code = 1; code < 256; code++) if ((below += counts[code]) >= quantile * total) return code;
      return 255;
    });
  }

  const at = (cell) => {
    const layer = Math.floor(cell / F), n = cell % F;
    return [n % state.columns, layer * (state.perLayer + GAP) + Math.floor(n / state.columns)];
  };

  function cellAt(px, py) {
    const x = Math.floor((px - GUTTER - state.x) / state.size), y = Math.floor((py - state.y) / state.size);
    const layer = Math.floor(y / (state.perLayer + GAP)), line = y - layer * (state.perLayer + GAP), n = line * state.columns + x;
    if (!state.image || px < GUTTER || x < 0 || x >= state.columns || layer < 0 || layer >= L || line >= state.perLayer || n >= F) return -1;
    return layer * F + n;
  }

  function centre() {
    const x = (stage.clientWidth - GUTTER) / 2 - state.x, y = stage.clientHeight / 2 - state.y;
    const line = Math.floor(y / state.size), column = Math.min(Math.max(Math.floor(x / state.size), 0), state.columns - 1);
    const layer = Math.min(Math.max(Math.floor(line / (state.perLayer + GAP)), 0), L - 1);
    const n = Math.min(Math.max(line - layer * (state.perLayer + GAP), 0), state.perLayer - 1) * state.columns + column;
    return { cell: layer * F + Math.min(n, F - 1), fitted: state.fitted };
  }

  /** Puts a cell into the middle, at so many pixels a cell. */
  function look(cell, size) {
    state.size = Math.min(Math.max(size, state.fitted), Math.max(MOST_ZOOM, 4 * state.fitted));
    const [x, y] = at(cell);
    state.x = (stage.clientWidth - GUTTER) / 2 - (x + 0.5) * state.size;
    state.y = stage.clientHeight / 2 - (y + 0.5) * state.size;
    within();
  }

  function within() {
    const width = stage.clientWidth - GUTTER, height = stage.clientHeight;
    const wide = state.columns * state.size, tall = state.image.height * state.size;
    state.x = wide <= width ? 0 : Math.min(0, Math.max(width - wide, state.x));
    state.y = tall <= height ? 0 : Math.min(0, Math.max(height - tall, state.y));
  }

  function fit() { state.size = state.fitted; state.x = state.y = 0; within(); changed(); }

  function zoom(factor, px = stage.clientWidth / 2, py = stage.clientHeight / 2) {
    if (!state.image) return;
    const before = state.size;
    state.size = Math.min(Math.max(state.size * factor, state.fitted), Math.max(MOST_ZOOM, 4 * state.fitted));
    state.x = px - GUTTER - (px - GUTTER - state.x) * state.size / before;
    state.y = py - (py - state.y) * state.size / before;
    within();
    changed();
  }

  function restore() {
    const wanted = neuronFrom(asked.at || ""), position = wanted ? facts.layers.indexOf(wanted.layer) : -1;
    state.size = state.fitted;
    state.x = state.y = 0;
    if (position >= 0 && wanted.neuron < F) look(position * F + wanted.neuron, Number(asked.zoom) * state.fitted || state.fitted);
    else within();
  }

  function changed() { point(-1); draw(); remember(); }

  function remember() {
    const zoomed = state.image && state.size > state.fitted * 1.01, { cell } = zoomed ? centre() : { cell: 0 };
    const where = zoomed ? { at: nameOf(facts.layers[Math.floor(cell / F)], cell % F), zoom: (state.size / state.fitted).toFixed(2) }
      : state.image ? {} : { at: asked.at, zoom: asked.zoom };
    if (place().view === "picture") stay("picture", { ...state.asked, ...where });
  }

  function draw() {
    if (pending) return;
    pending = requestAnimationFrame(() => {
      pending = 0;
      if (!state.image) return;
      const ratio = devicePixelRatio || 1, width = stage.clientWidth, height = stage.clientHeight, style = getComputedStyle(document.body);
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.imageSmoothingEnabled = state.size < 1;
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, 0, width - GUTTER, height);
      pen.clip();
      pen.drawImage(state.image, GUTTER + state.x, state.y, state.columns * state.size, state.image.height * state.size);
      if (state.marked.length) {
        pen.strokeStyle = style.color;
        pen.lineWidth = 1;
        for (const cell of state.marked) {
          const [x, y] = at(cell);
          pen.beginPath();
          pen.arc(GUTTER + state.x + (x + 0.5) * state.size, state.y + (y + 0.5) * state.size, Math.max(4, state.size), 0, 7);
          pen.stroke();
        }
      }
      pen.restore();
      pen.fillStyle = style.color;
      pen.font = "11px system-ui, sans-serif";
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      const band = (state.perLayer + GAP) * state.size, step = [1, 2, 5, 10, 20, 50].find((n) => n * band >= 13) || 100;
      facts.layers.forEach((layer, i) => {
        const y = state.y + (i + 0.5) * band;
        if (i % step === 0 && y > -6 && y < height + 6) pen.fillText(i ? String(layer) : `L${layer}`, GUTTER - 6, y);
      });
    });
  }

  /** Puts the link over a cell and tells what it is; -1 for none. */
  function point(cell) {
    state.cursor = cell;
    spot.hidden = cell < 0;
    const token = ++asking;
    if (cell < 0) return tip(null);
    const layer = facts.layers[Math.floor(cell / F)], n = cell % F, [x, y] = at(cell), size = Math.max(state.size, 8);
    const left = GUTTER + state.x + (x + 0.5) * state.size, top = state.y + (y + 0.5) * state.size;
    spot.href = neuronHref(layer, n);
    spot.setAttribute("aria-label", nameOf(layer, n));
    Object.assign(spot.style, { width: `${size + 4}px`, height: `${size + 4}px`, left: `${left - size / 2 - 2}px`, top: `${top - size / 2 - 2}px` });
    const box = stage.getBoundingClientRect(), code = state.codes[cell];
    const line = element("p", {}, element("strong", { text: nameOf(layer, n) }), ` ${choice.value === "" ? "p" : NAMES[choice.value]} ${format(value(code))}`);
    tip([line], box.left + left, box.top + top);
    const tell = (poles) => {
      if (token === asking) tip([line, ...poles.map((pole) => element("p", {}, `${POLES[pole.pole]} `, ...words(pole)))], box.left + left, box.top + top);
    };
    if (labels.has(cell)) tell(labels.get(cell));
    else {
      setTimeout(async () => {
        if (token !== asking) return;
        try {
          const { poles } = await get(`label/${layer}/${n}`);
          labels.set(cell, poles);
          tell(poles);
        } catch { /* the name stays */ }
      }, 50);
    }
  }

  const words = (pole) => (pole.tokens.length ? pole.tokens.slice(0, 6).map(([text]) => token(text)) : ["(no label)"]);

  const inside = (event) => { const box = stage.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

  stage.addEventListener("wheel", (event) => { event.preventDefault(); zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0022)), ...inside(event)); }, { passive: false });
  stage.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, inside(event));
    drag = { from: inside(event), x: state.x, y: state.y, moved: false };
  });
  stage.addEventListener("pointermove", (event) => {
    const here = inside(event);
    if (pointers.size === 2 && pointers.has(event.pointerId)) {
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, p]) => p), before = pointers.get(event.pointerId);
      const far = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
      drag.moved = true;
      pointers.set(event.pointerId, here);
      return zoom(far(here) / Math.max(far(before), 1), (here[0] + other[0]) / 2, (here[1] + other[1]) / 2);
    }
    if (drag && pointers.has(event.pointerId)) {
      pointers.set(event.pointerId, here);
      if (!drag.moved && Math.hypot(here[0] - drag.from[0], here[1] - drag.from[1]) < 5) return;
      if (!drag.moved) { drag.moved = true; stage.setPointerCapture(event.pointerId); stage.classList.add("dragging"); point(-1); }
      state.x = drag.x + here[0] - drag.from[0];
      state.y = drag.y + here[1] - drag.from[1];
      within();
      draw();
      return;
    }
    point(cellAt(...here));
  });
  const up = (event) => {
    pointers.delete(event.pointerId);
    stage.classList.remove("dragging");
    if (drag && drag.moved) remember();
  };
  stage.addEventListener("pointerup", up);
  stage.addEventListener("pointercancel", up);
  stage.addEventListener("pointerleave", () => { if (!pointers.size) point(-1); });
  stage.addEventListener("click", (event) => {
    const moved = drag && drag.moved;
    drag = null;
    if (moved) return event.preventDefault();
    if (event.target === spot) return;
    const cell = cellAt(...inside(event));
    if (cell >= 0) location.hash = neuronHref(facts.layers[Math.floor(cell / F)], cell % F);
  });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -F, ArrowDown: F };
    if (event.key === "+" || event.key === "=") zoom(1.6);
    else if (event.key === "-") zoom(1 / 1.6);
    else if (event.key === "0") fit();
    else if (event.key === "Escape") point(-1);
    else if (event.key === "Enter" && state.cursor >= 0) location.hash = spot.getAttribute("href");
    else if (event.key in steps && state.codes) {
      const next = state.cursor < 0 ? centre().cell : state.cursor + steps[event.key];
      if (next >= 0 && next < L * F) {
        const [x, y] = at(next).map((v) => (v + 0.5) * state.size);
        if (x + state.x < 0 || x + state.x > stage.clientWidth - GUTTER || y + state.y < 0 || y + state.y > stage.clientHeight) { look(next, state.size); draw(); remember(); }
        point(next);
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  choice.addEventListener("change", load);
  way.addEventListener("change", load);
  field.addEventListener("input", load);
  const watcher = new ResizeObserver(() => { if (state.codes) paint(); });
  watcher.observe(stage);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  const pen = bar.getContext("2d");
  for (let x = 0; x < 160; x++) { pen.fillStyle = `rgb(${colour(x / 159).join(" ")})`; pen.fillRect(x, 0, 1, 1); }
  searching();
  load();
  return () => { watcher.disconnect(); dark.removeEventListener("change", draw); if (loading) loading.abort(); asking++; tip(null); };
}

const upper = (text) => text[0].toUpperCase() + text.slice(1);

function colour(share) {
  const along = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1), i = Math.min(Math.floor(along), VIRIDIS.length - 2);
  return VIRIDIS[i].map((from, c) => Math.round(from + (along - i) * (VIRIDIS[i + 1][c] - from)));
}
