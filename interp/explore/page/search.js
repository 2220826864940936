// Neurons for what one types: the box in the bar, and the view of what was found.

import { address, get, go, place, stay } from "./api.js";
import { $, NAMES, POLES, arrows, definitions, element, neuronFrom, neuronHref, neuronLink, note, probability, select, table, token, whole } from "./dom.js";

let facts, asking = null, box = null, last = "";

/** The box in the bar, which works in every view. */
export function listen(given) {
  facts = given;
  const now = () => ({ q: $("query").value, by: $("by").value === "word" ? "" : $("by").value, pole: box ? place().asked.pole : "" });
  const typed = () => {
    const asked = now();
    if (place().view === "search" && box) {
      stay("search", asked);
      find(asked);
    } else if (asked.q) {
      go("search", asked);
    }
  };
  if ($("query").value && place().view === "search" && !place().asked.q) stay("search", now()); // typed before the page was ready
  $("query").addEventListener("input", typed);
  $("by").addEventListener("change", typed);
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const neuron = neuronFrom($("query").value);
    const first = box && box.isConnected ? box.querySelector("a.neuron") : null;
    if (neuron) location.hash = neuronHref(neuron.layer, neuron.neuron);
    else if (first) first.click();
    else typed();
  });
  $("query").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && box && box.isConnected) {
      const first = box.querySelector("a.neuron");
      if (first) { event.preventDefault(); first.focus(); }
    } else if (event.key === "Escape" && $("query").value) {
      $("query").value = "";
      typed();
    }
  });
}

export function show(root, path, asked) {
  box = element("div");
  arrows(box, "a.neuron", () => $("query").focus());
  root.append(box);
  update(path, asked);
  return () => { if (asking) asking.abort(); box = null; };
}

export function update(path, asked) {
  if ($("query").value !== (asked.q || "")) $("query").value = asked.q || "";
  $("by").value = ["token", "regex"].includes(asked.by) ? asked.by : "word";
  find(asked);
  return true;
}

async function find(asked) {
  if (asking) asking.abort();
  asking = new AbortController();
  const { signal } = asking, key = JSON.stringify(asked);
  last = key;
  if (!asked.q) return welcome();
  const begun = performance.now();
  try {
    const found = await get("search", asked, signal);
    if (last === key && box) fill(asked, found, performance.now() - begun);
  } catch (error) {
    if (error.name !== "AbortError" && last === key && box) box.replaceChildren(element("h1", { text: `Neurons for ${asked.q}` }), note(error.message, "error"));
  }
}

function fill(asked, found, time) {
  const title = element("h1", {}, "Neurons for ", element("bdi", { text: asked.q }));
  if (found.neuron) {
    const [layer, neuron] = found.neuron;
    return box.replaceChildren(title, element("p", {}, neuronLink(layer, neuron), " – press Enter to open it."));
  }
  const pole = select([["", "both poles"], ["+", "+ pole"], ["-", "− pole"]], asked.pole || "", { "aria-label": "Pole" });
  pole.addEventListener("change", () => { const next = { ...asked, pole: pole.value }; stay("search", next); find(next); });
  const rows = found.rows === null ? `${whole(found.entries)} places in the map` : `${whole(found.rows)} poles`;
  const shown = found.matches.length, more = found.rows === null || found.rows > shown ? `, the best ${shown} of them here` : "";
  const score = found.alike ? "their probabilities together" : "the likeliest one of them";
  const parts = [title, note([found.note, found.token_count
    ? `${whole(found.token_count)} token${found.token_count === 1 ? "" : "s"} in ${rows}${more}, by ${score}; ${time.toFixed(0)} ms.`
    : "No token of this vocabulary is meant by this."].filter(Boolean).join(" "))];
  if (found.tokens.length) parts.push(element("p", { className: "completions" }, ...found.tokens.map(([text, uses]) => counted(text, uses))));
  if (found.completions.length) {
    parts.push(element("p", { className: "completions" }, "goes on:", ...found.completions.map(([text, display, uses]) => {
      const button = element("button", { type: "button" }, counted(display, uses));
      button.addEventListener("click", () => { $("query").value = text; $("query").dispatchEvent(new Event("input")); $("query").focus(); });
      return button;
    })));
  }
  const exported = (kind) => element("a", { href: address(`api/export/search.${kind}`, asked), download: "", text: kind === "html" ? "HTML page" : kind.toUpperCase() });
  parts.push(element("div", { className: "links" }, pole, element("a", { href: `#/${address("picture", { q: asked.q, by: asked.by })}`, text: "show in the picture" }),
    exported("csv"), exported("json"), exported("html")));
  if (shown) parts.push(matches(found.matches));
  const links = () => [...box.querySelectorAll("a.neuron")], at = links().indexOf(document.activeElement);
  box.replaceChildren(...parts);
  if (at >= 0) (links()[at] || $("query")).focus(); // whoever goes through what was found stays there
}

const counted = (text, uses) => element("span", {}, token(text), element("span", { className: "count", text: whole(uses) }));

export function matches(found) {
  return table([["neuron"], ["pole"], ["p", "number"], ["top tokens"]], found.map((m) => [
    neuronLink(m.layer, m.neuron), POLES[m.pole], probability(m.probability),
    m.tokens.length ? m.tokens.map(([text, , wanted]) => token(text, wanted)) : "(no label)",
  ]), "matches");
}

function welcome() {
  const { model, layers, control } = facts;
  const best = Object.entries(facts.best).map(([name, found]) => element("section", {}, element("h2", { text: `Best by ${NAMES[name]}` }),
    note(`${facts.rankings[name]}.`), matches(found)));
  box.replaceChildren(element("h1", { text: `What the neurons of ${model.name} stand for` }),
    note("Type a word, or open a neuron below. Press / to get to the search box, the arrow keys to go through what was found."),
    definitions([["neurons", whole(layers.length * model.neurons)], ["layers × neurons", `${layers.length} × ${whole(model.neurons)}`],
      ["vocabulary", whole(model.vocabulary)], ["decoded", `${facts.settings.site}, norm ${facts.settings.norm}`],
      ["control", control ? `${whole(control.rows)} a layer` : "none"]]),
    element("div", { className: "links" }, element("a", { href: "api/export/report.html", download: "", text: "the whole map as one HTML page" })),
    element("div", { className: "columns" }, ...best));
}
