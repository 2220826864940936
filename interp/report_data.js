"use strict";
// What the page was given, its numbers and names, and how elements are made. Text from the model is only ever set as text content.
// A "cell" is the number of a neuron in the map, a "slot" its place among those whose tokens the page holds.

const NAMES = {
  specialisation: "specialisation", concepts: "concepts", zmax_sigma: "top logit (sigmas)", coherence: "coherence",
  p1: "top probability", group_mass: "top group's probability", margin: "margin", entropy: "entropy", kurtosis: "kurtosis",
  read_write: "read–write cosine", skew: "skew", norm_up: "length of up row", norm_gate: "length of gate row",
  norm_down: "length of down column",
};
const POLES = ["+", "−"];

const $ = (id) => document.getElementById(id);
const facts = JSON.parse($("facts").textContent);
const F = facts.model.neurons, L = facts.mapped.length;
let columns; // name -> typed array of codes
let slotOf; // cell -> slot, or -1

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
