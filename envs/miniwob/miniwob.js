// The page's side of a MiniWoB episode. Runs before the page's own scripts, on each navigation.
(() => {
  const HIDDEN = ["reward-display", "sync-task-cover", "click-canvas", "attention-canvas"]; // they show the last reward
  const SHAPES = new Set(["rect", "circle", "ellipse", "polygon", "polyline", "path", "line", "text", "image"]);
  const TYPED = { button: "button", submit: "button", reset: "button", checkbox: "checkbox", radio: "radio", range: "slider" };
  const ROLES = { a: "link", button: "button", textarea: "textbox", select: "combobox", option: "option", img: "image", canvas: "canvas",
    h1: "heading", h2: "heading", h3: "heading", h4: "heading", li: "listitem", td: "cell", th: "cell", label: "label" };
  const WHOLE = new Set(["button", "textarea", "option", "canvas", "img"]); // listed as one element, whatever is inside

  // What pages draw while they load must not differ from run to run; episodes are seeded by `start`.
  Math.random = envsPage.random(1);

  function shapeText(element) {
    return element.tagName.toLowerCase() === "text" ? element.textContent.trim() : "";
  }

  function attributesOf(element) {
    const found = { tag: element.tagName.toLowerCase() };
    if (element.id) found.id = element.id;
    const classes = element.getAttribute("class");
    if (classes) found.class = classes;
    if (element === document.activeElement) found.focused = true;
    if (element.disabled) found.disabled = true;
    if (element.type === "checkbox" || element.type === "radio") found.checked = element.checked;
    else if (element.tagName === "INPUT" || element.tagName === "TEXTAREA" || element.tagName === "SELECT") found.value = element.value;
    if (element.tagName === "OPTION" && element.selected) found.selected = true;
    if (element.placeholder) found.placeholder = element.placeholder;
    if (element instanceof SVGElement) {
      for (const name of ["fill", "points", "d", "cx", "cy", "r", "x1", "y1", "x2", "y2", "font-size", "data-index"]) {
        const value = element.getAttribute(name);
        if (value) found[name] = value.slice(0, 200);
      }
    } else {
      for (const [name, value] of Object.entries(element.dataset)) if (name !== "tampered") found[`data-${name}`] = value.slice(0, 200);
    }
    return found;
  }

  function intersection(rect, clip) {
    const box = [Math.max(rect.left, clip[0]), Math.max(rect.top, clip[1]), Math.min(rect.right, clip[2]), Math.min(rect.bottom, clip[3])];
    return box[2] - box[0] >= 1 && box[3] - box[1] >= 1 ? box : null;
  }

  function largest(rects, clip) { // of the lines that a text wraps into, so that the middle of the box lies on it
    let best = null;
    let size = 0;
    for (const rect of rects) {
      const box = intersection(rect, clip);
      const area = box ? (box[2] - box[0]) * (box[3] - box[1]) : 0;
      if (area > size) [best, size] = [box, area];
    }
    return best;
  }

  function drawn(element, style) {
    return (
      !["BODY", "svg"].includes(element.tagName) && element.id !== "wrap" && element.id !== "area" &&
      (style.backgroundImage !== "none" || style.backgroundColor !== "rgba(0, 0, 0, 0)" || style.cursor === "pointer" ||
        !["normal", "none"].includes(style.content) || parseFloat(style.borderTopWidth) > 0)
    );
  }

  function covered(element, box) {
    const hit = document.elementFromPoint((box[0] + box[2]) / 2, (box[1] + box[3]) / 2);
    return hit !== null && hit !== element && !element.contains(hit) && !hit.contains(element);
  }

  function elements() {
    const found = [];
    const add = (element, role, text, box) => {
      const attributes = attributesOf(element);
      if (covered(element, box)) attributes.covered = true;
      found.push([role, text.replace(/\s+/g, " ").trim().slice(0, 300), box.map((x) => Math.round(x * 10) / 10), attributes]);
    };
    const range = document.createRange();
    const visit = (element, clip) => {
      const tag = element.tagName.toLowerCase();
      if (tag === "script" || tag === "style" || element.id === "query" || HIDDEN.includes(element.id)) return;
      const style = getComputedStyle(element);
      if (style.display === "none") return;
      const shown = style.visibility === "visible" && style.opacity !== "0";
      const aria = element.getAttribute("role");
      const role = (aria === "presentation" || aria === "none" ? null : aria) || TYPED[element.type] || (tag === "input" ? "textbox" : ROLES[tag]) || "text";
      if (SHAPES.has(tag) && element instanceof SVGElement) {
        const rect = element.getBoundingClientRect();
        const wide = { left: rect.left - 0.5, top: rect.top - 0.5, right: rect.right + 0.5, bottom: rect.bottom + 0.5 }; // lines
        const box = shown && intersection(wide, clip);
        if (box) add(element, tag === "text" ? "text" : "shape", shapeText(element), box);
        return;
      }
      if (tag === "input" || WHOLE.has(tag) || tag === "select") {
        const box = shown && largest(element.getClientRects(), clip);
        if (box) {
          const named = tag === "input" || tag === "select" || tag === "textarea";
          const label = element.labels && element.labels.length ? element.labels[0].textContent : "";
          const own = TYPED[element.type] === "button" && tag === "input" ? element.value : "";
          add(element, role, (named ? own || label : element.textContent) || element.title || element.ariaLabel || "", box);
        }
        if (tag !== "select" || !(element.multiple || element.size > 1)) return; // a list's options have boxes of their own
      }
      if (style.overflowX !== "visible" || style.overflowY !== "visible") {
        const box = intersection(element.getBoundingClientRect(), clip);
        if (!box) return;
        clip = box;
      }
      const before = found.length;
      for (const child of element.childNodes) {
        if (child instanceof Element) {
          visit(child, clip);
        } else if (child instanceof Text && /\S/.test(child.data)) {
          range.selectNodeContents(child);
          const box = shown && largest(range.getClientRects(), clip);
          if (box) add(element, style.cursor === "pointer" && role === "text" ? "link" : role, child.data, box);
        }
      }
      if (found.length === before && shown && drawn(element, style)) { // icons, handles, coloured tiles, cards face down
        const box = largest(element.getClientRects(), clip);
        if (box) add(element, role === "text" ? "icon" : role, element.title || "", box);
      }
    };
    visit(document.body, [0, 0, innerWidth, innerHeight]);
    return found;
  }

  function state() {
    const found = envsPage.state(HIDDEN);
    const blink = /(<span id="input-flicker")[^>]*>/; // a cursor that comes and goes
    found.html = found.html.replace(/ data-tampered="[^"]*"/g, "").replace(blink, "$1>");
    return found;
  }

  window.miniwobPage = {
    start(seed, mode) {
      if (!document.getElementById("miniwob-hidden")) {
        const style = document.createElement("style");
        style.id = "miniwob-hidden";
        style.textContent = HIDDEN.map((id) => `#${id}`).join(", ") + " { display: none !important; }";
        document.head.append(style);
      }
      if (document.activeElement && document.activeElement !== document.body) document.activeElement.blur();
      Math.seedrandom(seed);
      core.setDataMode(mode);
      core.startEpisodeReal();
      return core.EPISODE_MAX_TIME;
    },
    ready: () => Boolean(WOB_TASK_READY),
    view() {
      const told = core.getUtterance();
      return {
        done: WOB_DONE_GLOBAL,
        raw: Number.isFinite(WOB_RAW_REWARD_GLOBAL) ? WOB_RAW_REWARD_GLOBAL : null,
        scaled: Number.isFinite(WOB_REWARD_GLOBAL) ? WOB_REWARD_GLOBAL : null,
        reason: WOB_REWARD_REASON === null || WOB_REWARD_REASON === undefined ? null : String(WOB_REWARD_REASON),
        utterance: typeof told === "string" ? told : told.utterance,
        fields: typeof told === "string" ? null : told.fields,
        elements: elements(),
        state: state(),
      };
    },
  };
})();
