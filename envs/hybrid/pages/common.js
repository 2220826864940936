// What the pages have in common. `DATA` is the task's own part.
const desk = (window.desk = {
  asking: false, // whether a file was asked for; whoever offers the choice sets it back
  busy: 0, // files that are being read
  wanted: 0, // downloads that were asked for and have not come: whoever counts those that come takes them off
  sent: null, // what was sent last: this is what the check looks at

  make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  },

  // A link that downloads a file of the site.
  download(name, text = `Download ${name}`) {
    const link = desk.make("a", { id: `get-${name}`, href: `files/${name}`, download: name }, text);
    link.addEventListener("click", () => (desk.wanted += 1));
    return link;
  },

  send(values) {
    desk.sent = values;
    document.querySelector("#receipt").textContent = "Thank you. This was received.";
  },

  // A field for a file, a preview of its text, and a button that sends it.
  upload(place) {
    const field = desk.make("input", { id: "file", type: "file" });
    field.addEventListener("click", () => (desk.asking = true));
    const preview = desk.make("pre", { id: "preview" }, "no file yet");
    const button = desk.make("button", { id: "send", class: "main" }, "Send");
    let chosen = null;
    field.addEventListener("change", async () => {
      const file = field.files[0];
      chosen = null;
      preview.textContent = "no file yet";
      if (!file) return;
      if (file.size > 200000) {
        preview.textContent = "this file is too large: 200 kB are the most";
        return;
      }
      desk.busy += 1;
      try {
        chosen = { name: file.name, text: await file.text() };
        preview.textContent = chosen.text;
      } catch (error) {
        preview.textContent = "this file can't be read";
      } finally {
        desk.busy -= 1;
      }
    });
    button.addEventListener("click", () => {
      if (chosen) desk.send(chosen);
      else document.querySelector("#receipt").textContent = "Choose a file first.";
    });
    place.append(field, preview, desk.make("div", { class: "row" }, button, desk.make("span", { id: "receipt" })));
  },
});

addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll("[data-text]")) place.textContent = DATA[place.dataset.text];
  for (const place of document.querySelectorAll("[data-download]")) place.replaceWith(desk.download(DATA[place.dataset.download]));
});
