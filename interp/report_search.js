// Neurons by token, as one types.

const SPACE = "␣";
const SHOWN_MATCHES = 30;
const SHOWN_COMPLETIONS = 12;
let words; // the tokens as the search compares them
let rows; // where tokens stand in ids, by token
let firstOfRow; // token number -> its first place in rows

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
