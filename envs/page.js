// What a page holds, as plain data: the same for the same page, whatever a caret's blink or the mouse does.
window.envsPage = {
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
