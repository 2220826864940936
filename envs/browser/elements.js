// Lists what can be seen and named on the page: controls, links, texts, pictures, shapes. Returns an array of
// [role, text, x1, y1, x2, y2, attributes], boxes clipped to what is visible, in pixels of the window, in document order.
(limit) => {
  const FORMATTING = new Set(["B", "I", "EM", "STRONG", "U", "S", "SMALL", "BIG", "BR", "WBR", "SUB", "SUP", "MARK", "CODE", "FONT"]);
  const SKIPPED = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK", "TITLE"]);
  const SHAPES = new Set(["circle", "ellipse", "rect", "line", "polyline", "polygon", "path", "image", "text"]);
  const TYPES = { checkbox: "checkbox", radio: "radio", range: "slider", number: "spinbutton", search: "searchbox", file: "file", color: "color",
    button: "button", submit: "button", reset: "button", image: "button" };
  const TAGS = { A: "link", BUTTON: "button", SELECT: "combobox", TEXTAREA: "textbox", OPTION: "option", SUMMARY: "button", IMG: "image",
    CANVAS: "canvas", VIDEO: "video", AUDIO: "audio", LABEL: "label", LI: "listitem", TD: "cell", TH: "columnheader", PROGRESS: "progressbar",
    METER: "meter", IFRAME: "frame", H1: "heading", H2: "heading", H3: "heading", H4: "heading", H5: "heading", H6: "heading" };
  const found = [];
  const clean = (text) => (text || "").replace(/\s+/g, " ").trim().slice(0, 500);
  const shorten = (box, clip) => [Math.max(box[0], clip[0]), Math.max(box[1], clip[1]), Math.min(box[2], clip[2]), Math.min(box[3], clip[3])];
  const ownText = (node) => {
    let text = "";
    for (const child of node.childNodes) {
      if (child.nodeType === 3) text += child.data;
      else if (child.nodeType === 1 && FORMATTING.has(child.tagName)) text += child.tagName === "BR" ? " " : ownText(child);
    }
    return text;
  };
  const roleOf = (node, style) => {
    const given = node.getAttribute("role");
    if (given) return given.trim().split(/\s+/)[0].toLowerCase();
    const tag = node.tagName;
    if (tag === "INPUT") return node.type === "hidden" ? "" : TYPES[node.type] || "textbox";
    if (tag === "A" && !node.hasAttribute("href") && style.cursor !== "pointer") return "text";
    if (tag === "SELECT" && (node.multiple || node.size > 1)) return "listbox";
    if (TAGS[tag]) return TAGS[tag];
    if (node.isContentEditable && !(node.parentElement && node.parentElement.isContentEditable)) return "textbox";
    if (node instanceof SVGElement) return SHAPES.has(tag) ? tag : "";
    return "";
  };
  const labelOf = (node) => {
    const named = node.getAttribute("aria-label");
    if (named) return clean(named);
    return node.labels && node.labels.length ? clean(Array.from(node.labels, (label) => label.innerText).join(" ")) : "";
  };
  const describe = (node, role, style, active) => {
    const data = { tag: node.tagName.toLowerCase() };
    if (node.id) data.id = node.id;
    const classes = node.getAttribute("class");
    if (classes && classes.trim()) data.class = clean(classes);
    for (const name of ["name", "placeholder", "title", "alt", "href"]) if (node.getAttribute(name)) data[name] = clean(node.getAttribute(name));
    if (role === "checkbox" || role === "radio") data.checked = node.tagName === "INPUT" ? node.checked : node.getAttribute("aria-checked") === "true";
    else if (node.tagName === "SELECT") {
      data.value = clean(Array.from(node.selectedOptions, (option) => option.text).join(", "));
      data.options = Array.from(node.options).slice(0, 100).map((option) => clean(option.text));
    } else if (node.tagName === "OPTION") data.selected = node.selected;
    else if (node.tagName === "INPUT" || node.tagName === "TEXTAREA") data.value = node.type === "file" ? Array.from(node.files, (file) => file.name).join(", ") : node.value.slice(0, 5000);
    if (node.disabled) data.disabled = true;
    if (node.readOnly) data.readonly = true;
    for (const name of ["expanded", "selected", "pressed"]) {
      const state = node.getAttribute("aria-" + name);
      if (state) data[name] = state === "true";
    }
    if (node === active) data.focused = true;
    const label = labelOf(node);
    if (label) data.label = label;
    if (node instanceof SVGElement) {
      if (style.fill !== "none") data.fill = style.fill;
      if (style.stroke !== "none") data.stroke = style.stroke;
    } else if (style.backgroundColor !== "rgba(0, 0, 0, 0)") data.background = style.backgroundColor;
    if (style.color !== "rgb(0, 0, 0)" && !(node instanceof SVGElement)) data.color = style.color;
    return data;
  };
  // Something else lies over all of nine points of the box.
  const covered = (node, box, root) => {
    for (const fy of [0.5, 0.1, 0.9]) {
      for (const fx of [0.5, 0.1, 0.9]) {
        const top = root.elementFromPoint(box[0] + (box[2] - box[0]) * fx, box[1] + (box[3] - box[1]) * fy);
        if (!top || top === node || node.contains(top) || top.contains(node) || getComputedStyle(top).opacity === "0") return false;
        if (top.tagName === "LABEL" && top.control === node) return false;
      }
    }
    return true;
  };
  const walk = (node, clip, dx, dy, root, active, faint) => {
    if (found.length >= limit || SKIPPED.has(node.tagName)) return;
    const style = node.ownerDocument.defaultView.getComputedStyle(node);
    if (style.display === "none" || Number(style.opacity) === 0) return;
    const rect = node.getBoundingClientRect();
    const raw = [rect.left + dx, rect.top + dy, rect.right + dx, rect.bottom + dy];
    const box = shorten(raw, clip);
    const shown = box[2] - box[0] >= 1 && box[3] - box[1] >= 1;
    const thin = node instanceof SVGElement && box[2] >= box[0] && box[3] >= box[1] && (box[2] - box[0] >= 1 || box[3] - box[1] >= 1);
    let inside = clip;
    if (!/^(visible|)$/.test(style.overflowX + "") || !/^(visible|)$/.test(style.overflowY + "")) {
      if (node.tagName !== "BODY" && node.tagName !== "HTML" && style.display !== "inline" && style.display !== "contents") inside = shorten(raw, clip);
    }
    const role = roleOf(node, style);
    let deeper = true;
    if ((shown || thin) && style.visibility === "visible") {
      const text = clean(node.tagName === "BODY" || node.tagName === "HTML" ? "" : ownText(node));
      const points = style.cursor === "pointer" && !faint;
      const control = role && !["label", "listitem", "cell", "columnheader", "heading", "frame", "text", "option"].includes(role);
      const handler = node.hasAttribute("onclick") || node.hasAttribute("tabindex");
      const leaf = !node.firstElementChild && !text && !role && box[2] - box[0] >= 3 && box[3] - box[1] >= 3 &&
        (style.backgroundColor !== "rgba(0, 0, 0, 0)" || style.backgroundImage !== "none" || parseFloat(style.borderTopWidth) > 0);
      if (control || text || points || handler || leaf) {
        const local = [box[0] - dx, box[1] - dy, box[2] - dx, box[3] - dy];
        if (style.pointerEvents === "none" || thin || !covered(node, local, root)) {
          const whole = ["button", "link", "menuitem", "tab", "option"].includes(role) || (points && !text);
          const kind = role || (text && !points && !handler ? "text" : points || handler ? "clickable" : "graphic");
          found.push([kind, whole && node.innerText !== undefined ? clean(node.innerText) || text || labelOf(node) : node.tagName === "INPUT" && kind === "button" ? clean(node.value) || "Submit" : text,
            ...box, describe(node, role, style, active)]);
          deeper = !["button", "link", "option"].includes(role) && node.tagName !== "SELECT" && node.tagName !== "TEXTAREA";
        }
      }
    }
    if (node.tagName === "SELECT" && role === "listbox") deeper = true;
    if (node.tagName === "IFRAME") {
      let inner = null;
      try {
        inner = node.contentDocument;
      } catch (error) {
        inner = null;
      }
      if (inner && inner.documentElement && shown) {
        const left = raw[0] + node.clientLeft, top = raw[1] + node.clientTop;
        walk(inner.documentElement, shorten([left, top, left + node.clientWidth, top + node.clientHeight], clip), left, top, inner, inner.activeElement, false);
      }
      return;
    }
    if (!deeper) return;
    const points = faint || style.cursor === "pointer";
    if (node.shadowRoot) for (const child of node.shadowRoot.children) walk(child, inside, dx, dy, node.shadowRoot, node.shadowRoot.activeElement, points);
    for (const child of node.children) if (!FORMATTING.has(child.tagName) || child.firstElementChild) walk(child, inside, dx, dy, root, active, points);
  };
  walk(document.documentElement, [0, 0, innerWidth, innerHeight], 0, 0, document, document.activeElement, false);
  return found;
}
