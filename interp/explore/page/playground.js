// The playground: a prompt, clamps with sliders, and what the plain and the clamped model make of it.

import { events, get, place, stay } from "./api.js";
import { copy, element, format, nameOf, neuronFrom, neuronLink, note, percent, probability, select, tip, token, whole } from "./dom.js";

const REACH = 100; // of a slider, unless the value lies farther out
const POSITIONS = [["all", "all positions"], ["prompt", "the prompt"], ["generated", "the answer"], ["last", "the prompt's last token"]];

export function show(root, path, asked, facts) {
  if (!facts.playground) {
    root.append(element("h1", { text: "Playground" }), note("There is no model to run: start the explorer with --model."));
    return null;
  }
  const limits = facts.playground, clamps = [];
  let running = null;
  const prompt = element("textarea", { id: "prompt", "aria-label": "Prompt", maxlength: String(limits.max_prompt), spellcheck: "false" });
  prompt.value = asked.prompt ?? "My favourite thing is";
  const chat = element("input", { type: "checkbox" });
  chat.checked = limits.chat && asked.chat === "1";
  chat.disabled = !limits.chat;
  const tokens = element("input", { type: "number", min: "1", max: String(limits.max_new), value: asked.tokens || "40" });
  const heat = element("input", { type: "number", min: "0", max: "10", step: "0.1", value: asked.heat || "0" });
  const site = select(limits.sites.map((name) => [name, name]), limits.sites.includes(asked.site) ? asked.site : "up", { "aria-label": "Site" });
  const positions = select(POSITIONS, POSITIONS.some(([name]) => name === asked.positions) ? asked.positions : "all", { "aria-label": "Positions" });
  const list = element("div"), added = element("input", { type: "text", placeholder: "L29/N1342", "aria-label": "Neuron to clamp", size: "12" });
  const add = element("button", { type: "button", text: "add clamp" });
  const run = element("button", { type: "button", className: "primary", text: "run", id: "run" });
  const stop = element("button", { type: "button", text: "stop", disabled: "" });
  const status = note(""), failure = note("", "error");
  const nextBox = element("section"), plain = element("p", { className: "answer" }), clamped = element("p", { className: "answer" });
  const command = element("button", { type: "button", text: "copy as command line" }), python = element("button", { type: "button", text: "copy as Python" });
  const code = element("pre", { className: "copy", hidden: "", tabindex: "0" });
  const label = (text, node) => element("label", {}, `${text} `, node);
  root.append(element("h1", { text: "Playground" }), element("div", { className: "playground" },
    element("section", {}, label("Prompt", prompt),
      element("div", { className: "field" }, element("label", {}, chat, " as a chat message"), label("tokens", tokens), label("temperature", heat)),
      element("h2", { text: "Clamps" }), note("A clamp holds a neuron at a value while the model runs."), list,
      element("div", { className: "field" }, added, add), element("div", { className: "field" }, label("at", site), label("on", positions)),
      element("div", { className: "field" }, run, stop), status, failure, element("div", { className: "field" }, command, python), code),
    element("div", {}, element("div", { className: "answers" },
      element("section", {}, element("h3", {}, element("i", { className: "key" }), "plain"), plain),
      element("section", {}, element("h3", {}, element("i", { className: "key clamped" }), "clamped"), clamped)), nextBox)));

  const asPlace = () => ({
    prompt: prompt.value, clamps: clamps.map((c) => `${c.name}=${c.value()}`).join(";"), chat: chat.checked ? "1" : "",
    tokens: tokens.value, heat: heat.value === "0" ? "" : heat.value, site: site.value === "up" ? "" : site.value,
    positions: positions.value === "all" ? "" : positions.value,
  });
  const remember = () => { if (place().view === "playground") stay("playground", asPlace()); };

  function clamp(layer, neuron, value) {
    const name = nameOf(layer, neuron);
    if (clamps.some((c) => c.name === name)) return;
    if (clamps.length >= limits.max_clamps) { failure.textContent = `At most ${limits.max_clamps} clamps.`; return; }
    const reach = Math.max(REACH, 2 * Math.abs(value));
    const slider = element("input", { type: "range", min: String(-reach), max: String(reach), step: "any", "aria-label": `${name} slider` });
    const number = element("input", { type: "number", step: "any", "aria-label": `${name} value` });
    slider.value = number.value = String(value);
    const words = note(""), remove = element("button", { type: "button", text: "×", "aria-label": `Remove ${name}` });
    const box = element("div", { className: "clamp" }, element("div", { className: "row" }, element("span", { className: "neuron" }, neuronLink(layer, neuron)), number, remove),
      element("div", { className: "row" }, slider), words);
    const one = { name, layer, neuron, box, value: () => Number(number.value) || 0 };
    slider.addEventListener("input", () => { number.value = String(Math.round(slider.value * 10) / 10); remember(); });
    number.addEventListener("input", () => { slider.value = number.value; remember(); });
    for (const node of [slider, number]) node.addEventListener("change", start);
    remove.addEventListener("click", () => { clamps.splice(clamps.indexOf(one), 1); box.remove(); remember(); });
    clamps.push(one);
    list.append(box);
    get(`label/${layer}/${neuron}`).then(({ poles }) => {
      words.replaceChildren(...poles.map((pole) => element("span", {}, `${pole.pole === "-" ? "−" : "+"} `, ...pole.tokens.slice(0, 4).map(([text]) => token(text)), " ")));
    }).catch((error) => { words.textContent = error.message; words.className = "error"; });
  }

  function addFrom() {
    const found = neuronFrom(added.value);
    failure.textContent = found ? "" : "Write layer and number, such as L29/N1342.";
    if (found) { clamp(found.layer, found.neuron, 20); added.value = ""; remember(); }
  }

  const request = () => ({
    prompt: prompt.value, chat: chat.checked, max_tokens: Number(tokens.value) || 1, temperature: Number(heat.value) || 0,
    clamps: clamps.map(({ layer, neuron, value }) => ({ layer, neuron, value: value(), site: site.value, positions: positions.value })),
  });

  async function start() {
    if (running) running.abort();
    const mine = running = new AbortController();
    remember();
    failure.textContent = "";
    status.textContent = "reading the prompt … the first time takes longer";
    run.disabled = true;
    stop.disabled = false;
    plain.replaceChildren();
    clamped.replaceChildren();
    try {
      for await (const event of events("generate", request(), mine.signal)) {
        if (running !== mine) return;
        if (event.event === "wait") status.textContent = "waiting for the model …";
        else if (event.event === "next") { next(event); status.textContent = "answering … the first time takes longer"; }
        else if (event.event === "piece") { write(plain, event.plain); write(clamped, event.clamped); }
        else if (event.event === "scores") { score(plain, event.plain, "clamped"); score(clamped, event.clamped, "plain"); }
        else if (event.event === "end") {
          [plain, clamped].forEach((box, i) => box.append(event.rest[i]));
          status.textContent = `${event.tokens[0]} and ${event.tokens[1]} tokens in ${event.seconds.toFixed(1)} s. Point at a token for its probability.`;
        } else if (event.event === "error") { failure.textContent = event.error; status.textContent = ""; }
      }
    } catch (error) {
      if (running === mine) status.textContent = error.name === "AbortError" ? "stopped" : "";
      if (running === mine && error.name !== "AbortError") failure.textContent = error.message;
    } finally {
      if (running === mine) { running = null; run.disabled = false; stop.disabled = true; }
    }
  }

  const write = (box, tokens) => box.append(...tokens.map(([text, display]) => {
    const node = element("span", { text });
    node.token = display;
    return node;
  }));

  function score(box, scores, other) {
    [...box.children].forEach((node, i) => {
      const told = scores[i];
      if (!told) return;
      node.tabIndex = -1;
      node.told = () => [element("p", {}, token(node.token), ` p ${probability(told.p)}; in the ${other} model ${probability(told.other)}`),
        element("p", {}, "likeliest here: ", ...told.best.flatMap(([text, p]) => [token(text), `${format(p)} `]))];
    });
  }

  const hover = (event) => {
    const node = event.target;
    tip(node.told ? node.told() : null, event.clientX, event.clientY);
  };
  for (const box of [plain, clamped]) {
    box.addEventListener("pointermove", hover);
    box.addEventListener("pointerleave", () => tip(null));
  }

  function next({ tokens: found, kl, prompt_tokens: count }) {
    const most = Math.max(...found.map(([, a, b]) => Math.max(a, b)), 1e-9);
    const bar = (p, kind) => {
      const fill = element("i"), track = element("span", { className: `track ${kind}` }, fill);
      fill.style.width = `${100 * p / most}%`;
      return track;
    };
    const lines = found.map(([text, a, b]) => element("tr", {}, element("td", {}, token(text)), element("td", { className: "bar" }, bar(a, ""), bar(b, "clamped")),
      element("td", { className: "number" }, element("div", { text: percent(a, 2) }), element("div", { text: percent(b, 2) }))));
    nextBox.replaceChildren(element("h2", { text: "The next token" }), note(`After ${whole(count)} prompt tokens. Plain above, clamped below; the two distributions are KL ${format(kl)} nats apart.`),
      element("table", { className: "bars", id: "next" }, element("tbody", {}, ...lines)));
  }

  add.addEventListener("click", addFrom);
  added.addEventListener("keydown", (event) => { if (event.key === "Enter") addFrom(); });
  run.addEventListener("click", start);
  stop.addEventListener("click", () => { if (running) running.abort(); });
  prompt.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); start(); } });
  for (const node of [prompt, tokens, heat]) node.addEventListener("input", remember);
  for (const node of [chat, site, positions]) node.addEventListener("change", remember);
  command.addEventListener("click", () => copy(commandLine(limits.model, request()), command, code));
  python.addEventListener("click", () => copy(pythonCode(limits.model, request()), python, code));
  for (const part of (asked.clamps || "").split(";")) {
    const [name, value] = part.split("="), found = neuronFrom(name);
    if (found && Number.isFinite(Number(value))) clamp(found.layer, found.neuron, Number(value));
  }
  if (asked.prompt && clamps.length) start();
  return () => { if (running) running.abort(); tip(null); };
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function commandLine(model, { prompt, chat, max_tokens: count, clamps }) {
  const { site = "up", positions = "all" } = clamps[0] || {};
  const words = clamps.length ? ["jaxllm clamp", ...clamps.map(({ layer, neuron, value }) => `--set ${nameOf(layer, neuron)}=${value}`)] : ["jaxllm generate"];
  if (site !== "up") words.push(`--site ${site}`);
  if (positions !== "all") words.push(`--positions ${positions}`);
  return [...words, `--max-tokens ${count}`, ...(chat ? ["--chat"] : []), "--", quoted(model), quoted(prompt)].join(" ");
}

function pythonCode(model, { prompt, chat, max_tokens: count, temperature, clamps }) {
  const rows = clamps.map(({ layer, neuron, value, site, positions }) => `    NeuronClamp(${layer}, ${neuron}, ${value}, site=${pythonText(site)}, positions=${pythonText(positions)}),`);
  return [
    "from jaxllm import generate", ...(chat ? ["from jaxllm.chat import encode_chat"] : []), "from jaxllm.clamp import NeuronClamp, make_clamp",
    "from jaxllm.hub import resolve", "from jaxllm.load import load_params, open_checkpoint", ...(temperature ? ["from jaxllm.sampling import Sampler"] : []), "",
    `checkpoint = open_checkpoint(resolve(${pythonText(model)}))`, "params, tokenizer = load_params(checkpoint), checkpoint.tokenizer()",
    chat ? `prompt = encode_chat(tokenizer, checkpoint.chat_template(), [{"role": "user", "content": ${pythonText(prompt)}}])` : `prompt = tokenizer.encode(${pythonText(prompt)})`,
    "clamp = make_clamp(checkpoint.config, [", ...rows, "])",
    `options = {"max_tokens": ${count}, "stop_ids": checkpoint.stop_ids${temperature ? `, "sampler": Sampler(temperature=${temperature})` : ""}}`,
    "for held in (None, clamp):", "    [ids] = generate.generate(params, checkpoint.config, [prompt], clamp=held, **options)",
    "    print(tokenizer.decode(ids, skip_specials=True))", "",
  ].join("\n");
}

/** A Python literal; characters beyond ASCII as escapes, those beyond 16 bits whole. */
function pythonText(value) {
  return `"${[...value].map((c) => {
    const code = c.codePointAt(0);
    if (c === "\\" || c === "\"") return `\\${c}`;
    if (code === 10) return "\\n";
    if (code >= 32 && code < 127) return c;
    return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  }).join("")}"`;
}
