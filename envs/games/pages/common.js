// What the pages share. A page knows no rules: it draws the view that it is given, and keeps what the player did until it is asked.
// A thing that can be played carries its action as JSON in data-action.
const game = {
  events: [],
  held: null,
  draw: null, // (view) => draws the board; set by each page

  // What the player did since the last call: {key}, or {action, same, dx, dy} for a press and a release of the left button.
  take() {
    return game.events.splice(0);
  },

  // Draws a view; see envs/games/views.py.
  show(view) {
    const find = (id) => document.getElementById(id);
    find("figures").replaceChildren(...view.figures.map(([name, value]) => {
      const box = game.element("div", { className: "figure" });
      box.append(game.element("small", { textContent: name }), game.element("b", { textContent: value }));
      return box;
    }));
    const note = game.element("p", { textContent: view.note, className: view.refused ? "refused" : "" });
    const buttons = view.buttons.map(([id, text]) => game.playable(game.element("button", { id, textContent: text }), { name: id, arguments: {} }));
    find("note").replaceChildren(note, ...buttons);
    find("board").replaceChildren();
    game.draw(view);
    return true;
  },

  // Forgets what was pressed, for a new episode.
  clear() {
    game.events.length = 0;
    game.held = null;
    return true;
  },

  element(tag, fields) {
    return Object.assign(document.createElement(tag), fields);
  },

  playable(node, action) {
    node.dataset.action = JSON.stringify(action);
    return node;
  },

  // Puts a thing on the board: {x, y, w, h, kind (its class), id, label, action, text, picture (SVG), style}.
  put(thing) {
    const node = game.element(thing.action ? "button" : "div", { className: thing.kind || "" });
    if (thing.id) node.id = thing.id;
    if (thing.label) {
      node.setAttribute("aria-label", thing.label);
      if (!thing.action) node.setAttribute("role", "img");
    }
    if (thing.action) game.playable(node, thing.action);
    if (thing.text !== undefined) node.dataset.text = thing.text;
    if (thing.picture) node.innerHTML = `<svg viewBox="0 0 100 100" aria-hidden="true">${thing.picture}</svg>`;
    Object.assign(node.style, { left: thing.x + "px", top: thing.y + "px", width: thing.w + "px", height: thing.h + "px", ...thing.style });
    document.getElementById("board").append(node);
    return node;
  },
};

addEventListener("pointerdown", (event) => {
  event.preventDefault();
  const node = event.target.closest("[data-action]");
  game.held = event.button === 0 && node ? { node, x: event.clientX, y: event.clientY } : null;
});
addEventListener("mousedown", (event) => event.preventDefault()); // keeps the focus where it is
addEventListener("pointerup", (event) => {
  const held = game.held;
  game.held = null;
  if (!held || event.button !== 0) return;
  const same = event.target.closest("[data-action]") === held.node;
  game.events.push({ action: JSON.parse(held.node.dataset.action), same, dx: event.clientX - held.x, dy: event.clientY - held.y });
});
addEventListener("contextmenu", (event) => event.preventDefault());
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  game.events.push({ key: event.key });
});
