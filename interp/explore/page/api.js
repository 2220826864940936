// What the page asks of its server, and the addresses of its views.

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function checked(response) {
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try { message = (await response.json()).error || message; } catch { /* not JSON: the number says enough */ }
  throw new Refused(response.status, message);
}

const query = (asked) => new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== "" && value !== undefined)).toString();
export const address = (path, asked = {}) => (query(asked) ? `${path}?${query(asked)}` : path);

export async function get(path, asked = {}, signal = undefined) {
  return (await checked(await fetch(address(`api/${path}`, asked), { signal }))).json();
}

export async function getBytes(path, asked, signal) {
  const response = await checked(await fetch(address(`api/${path}`, asked), { signal }));
  return { scale: JSON.parse(response.headers.get("x-scale")), codes: new Uint8Array(await response.arrayBuffer()) };
}

const post = (path, data, signal) => fetch(path, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(data), signal,
});

export async function login(token) { await checked(await post("login", { token })); }

/** The events of a streamed answer, one by one. */
export async function* events(path, data, signal) {
  const response = await checked(await post(`api/${path}`, data, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
  }
}

/** `#/view/path?name=value` -> its parts. */
export function place() {
  const [path, asked = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  return { view: view || "search", path: rest.join("/"), asked: Object.fromEntries(new URLSearchParams(asked)) };
}

/** Changes the address without a step back in the history. */
export function stay(path, asked = {}) { history.replaceState(null, "", `#/${address(path, asked)}`); }
export const go = (path, asked = {}) => { location.hash = `#/${address(path, asked)}`; };
