// Starts the page: who may see it, which view an address means, and the keys that work everywhere.

import { get, login, place, stay } from "./api.js";
import { $, element, note, tip } from "./dom.js";
import * as compare from "./compare.js";
import * as neuron from "./neuron.js";
import * as picture from "./picture.js";
import * as playground from "./playground.js";
import * as search from "./search.js";

const VIEWS = { search, picture, neuron, playground, compare };
let facts, shown = null, leave = null;

function route() {
  const { view, path, asked } = place();
  const name = view in VIEWS ? view : "search";
  tip(null);
  if (name === shown && VIEWS[name].update && VIEWS[name].update(path, asked)) return;
  if (leave) leave();
  shown = name;
  const root = $("view");
  root.replaceChildren();
  for (const link of document.querySelectorAll("#bar nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${path || name} · ${facts.model.name} · jaxllm explorer`;
  leave = VIEWS[name].show(root, path, asked, facts) || null;
  if (name !== "search") scrollTo(0, 0);
}

function keys(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName) && document.activeElement.type !== "range";
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    $("query").focus();
    $("query").select();
  } else if (event.key === "Escape") {
    tip(null);
    if (document.activeElement === $("query") && $("query").value) return;
    if (document.activeElement !== document.body) document.activeElement.blur();
  }
}

function askToken(root, message) {
  const field = element("input", { type: "password", id: "token", autocomplete: "off", "aria-label": "Token" });
  const form = element("form", {}, field, element("button", { className: "primary", text: "Enter" }));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try { await login(field.value); start(); } catch (error) { askToken(root, error.message); }
  });
  $("bar").hidden = true;
  root.replaceChildren(element("h1", { text: "This explorer needs its token" }), note(message), form);
  field.focus();
}

async function start() {
  const given = /^#token=(.*)$/.exec(location.hash);
  if (given) {
    stay("search");
    try { await login(decodeURIComponent(given[1])); } catch { /* the form asks again */ }
  }
  try {
    facts = await get("map");
  } catch (error) {
    if (error.status === 401) return askToken($("view"), "Whoever started it knows it.");
    throw error;
  }
  $("bar").hidden = false;
  $("name").textContent = `${facts.model.name} · ${facts.layers.length} × ${facts.model.neurons.toLocaleString("en")} neurons`;
  document.querySelector("[data-view=playground]").hidden = !facts.playground;
  document.querySelector("[data-view=compare]").hidden = !facts.compare;
  search.listen(facts);
  addEventListener("hashchange", route);
  addEventListener("keydown", keys);
  addEventListener("scroll", () => tip(null), { passive: true });
  route();
}

start().catch((error) => {
  $("view").replaceChildren(element("p", { className: "notice", role: "alert", text: `The explorer could not start: ${error.message}` }));
});
