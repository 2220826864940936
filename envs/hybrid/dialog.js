// The dialog in which a file of the session is chosen, where a browser with a window would open one of the system's.
window.envsFiles = {
  result: null, // of the dialog that is open: "" while it waits, else {path} or {cancelled: true}

  open(names) {
    const dialog = document.createElement("dialog");
    dialog.id = "envs-files";
    dialog.innerHTML = `<style>
      #envs-files { position: fixed; inset: 70px auto auto 50%; translate: -50% 0; width: 440px; padding: 0; border: 1px solid #667; border-radius: 8px;
        background: #fff; color: #222; font: 14px/1.4 "DejaVu Sans", "Liberation Sans", sans-serif; box-shadow: 0 8px 30px #0006; }
      #envs-files::backdrop { background: #0004; }
      #envs-files-title { padding: 8px 14px; background: #e8eaee; font-weight: bold; }
      #envs-files-list { height: 200px; margin: 10px 14px; overflow-y: auto; border: 1px solid #bbc; }
      #envs-files-list button { display: block; width: 100%; padding: 3px 8px; border: 0; border-radius: 0; background: #fff; color: #222; font: inherit; text-align: left; }
      #envs-files form { display: flex; gap: 8px; padding: 0 14px 12px; }
      #envs-files-name { flex: 1; min-width: 0; padding: 4px 8px; border: 1px solid #889; border-radius: 4px; font: inherit; }
      #envs-files form button { padding: 4px 14px; border: 1px solid #889; border-radius: 4px; background: #f3f4f6; color: #222; font: inherit; }
      #envs-files-problem { padding: 0 14px 8px; color: #b3261e; }
      </style><div id="envs-files-title">Choose a file in /desk</div><div id="envs-files-list"></div>
      <form><input id="envs-files-name" type="text" autocomplete="off" autofocus placeholder="path of the file">
      <button id="envs-files-open">Open</button><button id="envs-files-cancel" type="button">Cancel</button></form><div id="envs-files-problem"></div>`;
    const field = dialog.querySelector("#envs-files-name");
    for (const name of names) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.onclick = () => {
        field.value = name;
        field.focus();
      };
      dialog.querySelector("#envs-files-list").append(button);
    }
    dialog.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      this.result = { path: field.value };
    };
    dialog.querySelector("#envs-files-cancel").onclick = () => {
      this.result = { cancelled: true };
    };
    dialog.oncancel = (event) => {
      event.preventDefault();
      this.result = { cancelled: true };
    };
    document.body.append(dialog);
    this.result = "";
    dialog.showModal();
    field.focus();
  },

  // Null without a dialog.
  outcome() {
    return document.querySelector("#envs-files") ? this.result : null;
  },

  refuse(problem) {
    document.querySelector("#envs-files-problem").textContent = problem;
    this.result = "";
  },

  close() {
    document.querySelector("#envs-files").remove();
    this.result = null;
  },
};
