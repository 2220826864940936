// One neuron: its tokens, its numbers, and with the model what it reads, writes and fires on.

import { address, get } from "./api.js";
import { bars } from "./charts.js";
import { NAMES, POLES, element, format, nameOf, neuronFrom, neuronLink, note, probability, table, token, whole } from "./dom.js";

const SITES = { up: "up row: what it reads", gate: "gate row: what opens it", down: "down column: what it writes" };

export function show(root, path, asked, facts) {
  const wanted = neuronFrom(path), leaving = new AbortController();
  if (!wanted) { root.append(note(`${path} is not a neuron; write one such as L12/N345.`, "error")); return null; }
  fill(root, wanted, facts, leaving.signal).catch((error) => {
    if (error.name !== "AbortError") root.append(note(error.message, "error"));
  });
  return () => leaving.abort();
}

async function fill(root, { layer, neuron }, facts, signal) {
  const name = nameOf(layer, neuron), found = await get(`neuron/${layer}/${neuron}`, {}, signal);
  const places = Object.entries(found.places).map(([ranking, place]) => `${whole(place)} by ${ranking}`);
  const step = (by, text) => (neuron + by >= 0 && neuron + by < facts.model.neurons
    ? element("a", { href: `#/neuron/${nameOf(layer, neuron + by)}`, text }) : null);
  const exported = (kind, text) => element("a", { href: `api/export/${layer}/${neuron}/${kind}`, download: "", text });
  root.append(element("h1", { text: name }), note(`Place ${places.join(", ")} of ${whole(facts.layers.length * facts.model.neurons)}; better pole ${POLES[found.better_pole]}.`),
    element("div", { className: "links" }, step(-1, "‹ previous"), step(1, "next ›"),
      element("a", { href: `#/${address("picture", { by: "specialisation", at: name, zoom: 6 })}`, text: "in the picture" }),
      facts.playground ? element("a", { href: `#/${address("playground", { clamps: `${name}=20` })}`, text: "turn it up in the playground" }) : null,
      facts.compare ? element("a", { href: `#/compare/${name}`, text: `in ${facts.compare}` }) : null,
      exported("csv", "CSV"), exported("json", "JSON"), exported("html", "HTML page"), exported("neuronpedia.json", "Neuronpedia JSON")));
  const left = element("section", {}, element("h2", { text: `Both poles of its ${facts.settings.site} vector` }), poles(found));
  const right = element("section");
  root.append(element("div", { className: "columns" }, left, right));
  left.append(element("h2", { text: "Statistics" }), note(facts.control ? "The bars say how much of the layer, and of the control's random rows, lies below."
    : "The bars say how much of the layer lies below. The map has no control rows."), statistics(found, facts));
  const sections = [];
  const section = (side, title, path, asked, draw, wait) => {
    const body = element("div", {}, note(wait, "busy"));
    side.append(element("h2", { text: title }), body);
    sections.push(async () => {
      try { body.replaceChildren(...draw(await get(path, asked, signal))); } catch (error) {
        if (error.name === "AbortError") throw error;
        body.replaceChildren(note(error.message, "error"));
      }
    });
  };
  const base = `neuron/${layer}/${neuron}`;
  if (facts.playground) section(right, "Its other vectors", `${base}/decodes`, {}, (found) => decodes(found, facts.settings.site), "decoding …");
  if (facts.neighbours) section(right, "Nearest neighbours", `${base}/neighbours`, { pole: found.better_pole }, (near) => neighbours(near, found.better_pole), "comparing rows …");
  if (facts.playground) section(left, "Natural values", `${base}/natural`, {}, natural, "reading the calibration text …");
  if (facts.contexts) section(left, "Where it is moved", `${base}/contexts`, {}, contexts, "reading the text …");
  if (!facts.playground) right.append(note("Start the explorer with --model to see what the gate reads and the down column writes, its natural values, and to clamp it."));
  for (const load of sections) await load();
}

/** The tokens of both poles of a neuron as the map has them. */
export function poles(found, shown = Infinity) {
  return element("div", { className: "poles" }, ...found.poles.map((pole) => {
    const better = pole.pole === found.better_pole;
    return element("div", {}, element("h4", { text: `${POLES[pole.pole]} pole${better ? " (better)" : ""}`, className: better ? "better" : "" }),
      list(pole.tokens.slice(0, shown).map((t) => [t.display, t.probability])), pole.flags.length ? note(`Flags: ${pole.flags.join(", ")}`) : null);
  }));
}

const list = (tokens) => (tokens.length ? element("ol", { className: "tokens" }, ...tokens.map(([text, p]) => {
  return element("li", {}, token(text), element("span", { className: "number", text: probability(p) }));
})) : note("(no label)"));

function meter(share, kind = "") {
  if (share === null) return "";
  const fill = element("i"), box = element("span", { className: `meter ${kind}`, title: `${share.toFixed(1)} % below` }, fill);
  fill.style.width = `${share}%`;
  return [element("span", { className: "share", text: share.toFixed(share > 99 || share < 1 ? 1 : 0) }), box];
}

function statistics(found, facts) {
  const [plus, minus] = found.poles, control = facts.control !== null;
  const cells = (standing) => [format(standing.value), meter(standing.percentile), ...(control ? [meter(standing.control, "control")] : [])];
  const heads = (pole) => [[pole, "number"], ["layer", "meters"], ...(control ? [["control", "meters"]] : [])];
  const lines = facts.pole_statistics.filter((name) => name !== "lse").map((name) => [explained(name, facts), ...cells(plus.statistics[name]), ...cells(minus.statistics[name])]);
  for (const name of facts.neuron_statistics) {
    const blank = Array(control ? 3 : 2).fill("");
    lines.push([explained(name, facts), ...cells(found.statistics[name]), ...blank]);
  }
  return table([["statistic"], ...heads("+"), ...heads("−")], lines);
}

const explained = (name, facts) => element("span", { text: NAMES[name] || name, title: facts.explained[name] });

function decodes({ decodes: sites, cosine, sign }, shown) {
  return [note(`Reads and writes: cosine of up row and down column ${format(cosine)}. To raise its concept clamp it ${sign.sign > 0 ? "up" : "down"}: ${sign.confidence}, as ${sign.reason}.`),
    ...Object.entries(sites).filter(([site]) => site !== shown).flatMap(([site, [plus, minus]]) => [element("h3", { text: SITES[site] }), element("div", { className: "poles" },
      element("div", {}, element("h4", { text: "+" }), list(plus)), element("div", {}, element("h4", { text: "−" }), list(minus)))])];
}

function natural({ mean, std, min, max }) {
  return [note(`On the calibration text its up value is ${format(mean)} ± ${format(std)}, from ${format(min)} to ${format(max)}.`)];
}

function neighbours(near, pole) {
  return [note(`Rows along the same line, and their tokens along this neuron's ${POLES[pole]} pole.`),
    table([["neuron"], ["cosine", "number"], ["top tokens"]], near.map((n) => [
      neuronLink(n.layer, n.neuron), n.cosine.toFixed(3), n.tokens.length ? n.tokens.map((t) => token(t.display)) : "(no label)"]))];
}

function contexts(found) {
  const lines = (places) => table([["value", "number"], ["line", "number"], ["text"]], places.map((c) => [format(c.value), whole(c.line),
    element("span", { className: "context" }, ...c.tokens.map((text, i) => (i === c.at ? element("mark", { text }) : text.replaceAll("␣", " "))))]));
  return [note(`${whole(found.count)} tokens: mean ${format(found.mean)}, standard deviation ${format(found.std)}, ${format(found.min)} to ${format(found.max)}.`),
    element("figure", {}, bars({ ...found.histogram, xName: "up value" })),
    element("h3", { text: "Highest" }), lines(found.highest), element("h3", { text: "Lowest" }), lines(found.lowest)];
}
