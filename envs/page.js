// What a page holds, as plain data: the same for the same page, whatever a caret's blink or the mouse does.
window.envsPage = {
  // A generator in the place of Math.random: mulberry32, by T. Ettinger, in the public domain.
  random(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  },

  // The document without scripts and the elements of these ids.
  html(skipped) {
    const parts = [];
    for (const child of document.body ? document.body.children : []) {
      if (child.tagName !== "SCRIPT" && !skipped.includes(child.id)) parts.push(child.outerHTML);
    }
    return parts.join("\n");
  },

  // What a document's text does not have: values, scrolling, focus, selection.
  state(skipped = []) {
    const values = [];
    for (const element of document.querySelectorAll("input, textarea, select")) {
      const checkable = element.type === "checkbox" || element.type === "radio";
      values.push(checkable ? element.checked : element.multiple ? [...element.selectedOptions].map((option) => option.value) : element.value);
    }
    const scrolled = [];
    const root = document.scrollingElement;
    for (const element of document.querySelectorAll("*")) {
      const [x, y] = [element.scrollLeft, element.scrollTop];
      if ((x || y) && !skipped.includes(element.id)) scrolled.push([element === root ? "page" : element.id || element.tagName, x, y]);
    }
    const active = document.activeElement;
    return {
      html: this.html(skipped),
      values,
      scrolled,
      focus: active && active !== document.body ? active.id || active.tagName : null,
      selection: String(getSelection()),
    };
  },
};
