// How elements are made and numbers written. Text of a model is only ever set as text content.

export const POLES = { "+": "+", "-": "−" };
export const NAMES = {
  specialisation: "specialisation", concepts: "concepts", zmax_sigma: "top logit (sigmas)", coherence: "coherence",
  p1: "top probability", group_mass: "top group's probability", margin: "margin", entropy: "entropy", kurtosis: "kurtosis",
  read_write: "read–write cosine", skew: "skew", norm_up: "length of up row", norm_gate: "length of gate row",
  norm_down: "length of down column", mean: "mean logit", std: "spread of logits", lse: "log of summed exp",
};

export const $ = (id) => document.getElementById(id);

export function element(tag, { text, className, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function shape(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

export const token = (text, wanted = false) => element("bdi", { text, className: wanted ? "token wanted" : "token" });
export const note = (text, className = "note") => element("p", { text, className });
export const nameOf = (layer, neuron) => `L${layer}/N${neuron}`;
export const neuronHref = (layer, neuron) => `#/neuron/${nameOf(layer, neuron)}`;
export const neuronLink = (layer, neuron) => element("a", { className: "neuron", href: neuronHref(layer, neuron), text: nameOf(layer, neuron) });

export function neuronFrom(text) {
  const match = /^\s*L(\d{1,6})\s*\/?\s*N(\d{1,9})\s*$/i.exec(text);
  return match ? { layer: Number(match[1]), neuron: Number(match[2]) } : null;
}

export function format(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.1 || size < 5e-7 ? value.toFixed(2) : size >= 0.001 ? value.toFixed(3) : value.toExponential(0);
}

export const probability = (p) => (p > 0 && p < 1e-6 ? "<1e-6" : format(p));
export const percent = (share, digits = 1) => (Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : "–");
export const whole = (n) => n.toLocaleString("en");

/** headings: [text, class name]; a cell is text, a node, or a list of them. */
export function table(headings, lines, className = "") {
  const head = headings.map(([text, kind = ""]) => element("th", { text, className: kind, scope: "col" }));
  const body = lines.map((cells) => element("tr", {}, ...cells.map((cell, i) => {
    return element("td", { className: headings[i][1] || "" }, ...(Array.isArray(cell) ? cell : [cell]));
  })));
  const whole = element("table", { className }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  return element("div", { className: "scroll" }, whole);
}

export function definitions(pairs) {
  return element("dl", { id: "figures" }, ...pairs.map(([name, value]) => {
    return element("div", {}, element("dt", { text: name }), element("dd", { text: value }));
  }));
}

export function select(options, chosen, attributes = {}) {
  const node = element("select", attributes, ...options.map(([value, text]) => element("option", { value, text })));
  node.value = chosen;
  return node;
}

export function tip(nodes, clientX, clientY) {
  const box = $("tip");
  box.hidden = !nodes;
  if (!nodes) return;
  box.replaceChildren(...nodes);
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(clientX + 16, innerWidth - width - 4))}px`;
  box.style.top = `${clientY + 18 + height < innerHeight ? clientY + 18 : Math.max(4, clientY - height - 14)}px`;
}

/** Copies text, or shows it selected where the browser does not let a page copy. */
export async function copy(text, button, box) {
  box.hidden = false;
  box.textContent = text;
  try {
    await navigator.clipboard.writeText(text);
    const before = button.textContent;
    button.textContent = "copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  } catch {
    getSelection().selectAllChildren(box);
  }
}

/** Arrow keys move among the links of a list. */
export function arrows(box, links, leave) {
  box.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const all = [...box.querySelectorAll(links)], at = all.indexOf(document.activeElement);
    const next = event.key === "ArrowDown" ? at + 1 : at - 1;
    if (at < 0) return;
    event.preventDefault();
    if (next < 0) leave();
    else if (next < all.length) all[next].focus();
  });
}
