// What the pages share. A page knows no rules: it draws the view that it is given, and keeps what the player did until it is asked.
// A thing that can be played carries its action as JSON in data-action.
const game = {
  events: [],
  held: null,
  draw: null, // (view) => draws the board; set by each page
  board: null,
  shown: "",

  // What the player did since the last call: {key}, or {action, same, dx, dy} for a press and a release of the left button.
  take() {
    return game.events.splice(0);
  },

  // Draws a view; see envs/games/views.py. All of it anew, in a layer of its own, so that equal views are equal pictures whatever
  // was drawn before.
  show(view) {
    const make = game.element, text = JSON.stringify(view);
    if (text === game.shown) return true;
    game.shown = text;
    const screen = make("div", { id: "screen" }), header = make("header"), footer = make("footer");
    header.append(make("h1", { textContent: document.title }));
    for (const [name, value] of view.figures) {
      const box = make("div", { className: "figure" });
      box.append(make("small", { textContent: name }), " ", make("b", { textContent: value }));
      header.append(box);
    }
    game.board = make("main");
    footer.append(make("p", { textContent: view.note, className: view.refused ? "refused" : "" }));
    for (const [id, words] of view.buttons) footer.append(game.playable(make("button", { id, textContent: words }), { name: id, arguments: {} }));
    screen.append(header, game.board, footer);
    document.body.replaceChildren(screen);
    game.draw(view);
    return true;
  },

  // Forgets what was pressed, for a new episode.
  clear() {
    game.events.length = 0;
    game.held = null;
    game.shown = "";
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
    if (thing.text !== undefined && thing.action) node.dataset.text = thing.text; // drawn by the style, so that its label names it
    else if (thing.text !== undefined) node.textContent = thing.text;
    if (thing.picture) node.innerHTML = `<svg viewBox="0 0 100 100" aria-hidden="true">${thing.picture}</svg>`;
    const style = { left: thing.x + "px", top: thing.y + "px", width: thing.w + "px", height: thing.h + "px", ...thing.style };
    for (const [name, value] of Object.entries(style)) node.style.setProperty(name, value);
    game.board.append(node);
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
