// Two maps side by side: how many neurons keep their token, layer by layer, which changed, and one neuron before and after.

import { get, go, place, stay } from "./api.js";
import { lines } from "./charts.js";
import { element, format, nameOf, neuronFrom, note, percent, table, token, whole } from "./dom.js";
import { poles } from "./neuron.js";

const SHOWN = 100, WORDS = 8;
let kept = null; // the comparison, which takes a while to make

export function show(root, path, asked, facts) {
  const leaving = new AbortController();
  if (!facts.compare) {
    root.append(element("h1", { text: "Compare" }), note("There is no other map: start the explorer with --compare."));
    return null;
  }
  const draw = neuronFrom(path) ? one(root, neuronFrom(path), facts, leaving.signal) : all(root, asked, facts, leaving.signal);
  draw.catch((error) => { if (error.name !== "AbortError") root.append(note(error.message, "error")); });
  return () => leaving.abort();
}

async function all(root, asked, facts, signal) {
  root.append(element("h1", {}, element("bdi", { text: facts.model.name }), " and ", element("bdi", { text: facts.compare })));
  const wait = note("comparing …", "busy");
  root.append(wait);
  kept = kept || await get("compare", {}, signal);
  wait.remove();
  const { overall, by_layer: layers, changed, gained, lost } = kept, share = 100 * overall.match.share;
  root.append(note(`${share.toFixed(1)} % of the neurons that both maps label keep the top token of their + pole `
    + `(95 % interval ${percent(overall.match.low)} to ${percent(overall.match.high)}); by chance it would be ${percent(overall.chance, 2)}. `
    + (kept.paper ? `The paper's figure for its pair of models is ${percent(kept.paper)}.` : "These are not the paper's models, so its 75.4 % is no target here.")));
  const xs = layers.map((layer) => layer.layer), show = (v) => `${Math.round(100 * v)} %`;
  const chart = lines({ xs, xName: "layer", show, from: 0, to: 1, series: [
    { name: "same token", kind: "neurons", values: layers.map((l) => l.match.share), low: layers.map((l) => l.match.low), high: layers.map((l) => l.match.high) },
    { name: "same but for spelling", kind: "neurons", dashed: true, values: layers.map((l) => l.match_group.share) },
    { name: "by chance", kind: "control", values: layers.map((l) => l.chance) }] });
  const field = element("input", { type: "search", placeholder: "L12, a token", "aria-label": "Filter the changed neurons" }), list = element("div");
  field.value = asked.q || "";
  const fill = () => {
    const text = field.value.trim().toLowerCase();
    const found = changed.filter((row) => !text || `${nameOf(row.layer, row.neuron)} ${row.old.display} ${row.new.display}`.toLowerCase().includes(text));
    list.replaceChildren(note(`${whole(found.length)} of the ${whole(changed.length)} listed${found.length > SHOWN ? `, the first ${SHOWN} shown` : ""}; ${whole(kept.changed_in_all)} changed in all. The clearest labels come first.`),
      table([["neuron"], ["before"], ["after"], ["margin before", "number"], ["margin after", "number"], ["", "optional"]], found.slice(0, SHOWN).map((row) => [
        element("a", { className: "neuron", href: `#/compare/${nameOf(row.layer, row.neuron)}`, text: nameOf(row.layer, row.neuron) }), token(row.old.display), token(row.new.display),
        format(row.margin_a), format(row.margin_b), [row.same_group ? "another spelling" : "", row.ambiguous ? "ambiguous" : ""].filter(Boolean).join(", ")])));
  };
  field.addEventListener("input", () => { if (place().view === "compare") stay("compare", { q: field.value }); fill(); });
  fill();
  const words = (title, found) => element("section", {}, element("h3", { text: title }), found.length
    ? table([["token"], ["before", "number"], ["after", "number"]], found.slice(0, WORDS).map((w) => [token(w.display), whole(w.before), whole(w.after)])) : note("none"));
  root.append(element("div", { className: "overview" }, element("figure", {}, element("figcaption", { text: "Neurons that keep their token" }), chart),
    words("Tokens that label more neurons", gained), words("Tokens that label fewer", lost)),
  element("h2", { text: "Changed neurons" }), element("div", { className: "controls" }, field), list,
  element("details", {}, element("summary", { text: "Every layer" }), table([["layer", "number"], ["same token", "number"], ["but for spelling", "number"], ["overlap of the top", "number"], ["by chance", "number"]],
    layers.map((l) => [String(l.layer), percent(l.match.share), percent(l.match_group.share), percent(l.overlap.value), percent(l.chance, 2)]))));
}

async function one(root, { layer, neuron }, facts, signal) {
  const name = nameOf(layer, neuron), { before, after } = await get(`compare/${layer}/${neuron}`, {}, signal);
  const field = element("input", { type: "text", value: name, "aria-label": "Neuron", size: "12" }), open = element("button", { text: "open" });
  const form = element("form", {}, field, open);
  form.addEventListener("submit", (event) => { event.preventDefault(); if (neuronFrom(field.value)) go(`compare/${field.value.trim()}`); });
  const side = (found, title) => element("section", {}, element("h2", {}, element("bdi", { text: title })), poles(found),
    table([["", ""], ["+", "number"], ["−", "number"]], ["p1", "margin", "zmax_sigma", "coherence"].map((key) => [key, ...found.poles.map((pole) => format(pole.statistics[key].value))])));
  root.append(element("h1", { text: `${name}, before and after` }), element("div", { className: "links" },
    element("a", { href: "#/compare", text: "‹ all" }), element("a", { href: `#/neuron/${name}`, text: "its page" })), form,
  element("div", { className: "columns" }, side(before, facts.model.name), side(after, facts.compare)));
}
