// Print the accessibility tree and the Tab stops of a page: node accessibility.js WEBSOCKET URL SCRIPT
const [, , socketUrl, pageUrl, script] = process.argv;
const socket = new WebSocket(socketUrl);
const pending = new Map();
let lastId = 0, session;

function call(method, params = {}) {
  const id = ++lastId;
  socket.send(JSON.stringify({ id, method, params, ...(session ? { sessionId: session } : {}) }));
  return new Promise((resolve, reject) => pending.set(id, { resolve, reject }));
}

socket.onmessage = ({ data }) => {
  const { id, result, error } = JSON.parse(data);
  if (!pending.has(id)) return;
  const { resolve, reject } = pending.get(id);
  pending.delete(id);
  if (error) reject(new Error(error.message));
  else resolve(result);
};

const run = async (expression) => (await call("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true })).result.value;

// Press Tab until the first element has the focus again. Returns the focused elements and whether the focus is visible.
async function tabStops() {
  const stops = [];
  for (let i = 0; i < 80; i++) {
    for (const type of ["keyDown", "keyUp"]) await call("Input.dispatchKeyEvent", { type, key: "Tab", code: "Tab", windowsVirtualKeyCode: 9 });
    const current = await run(`(() => {
      const element = document.activeElement;
      if (!element || element === document.body) return null;
      element.dataset.stop ??= String(document.querySelectorAll("[data-stop]").length);
      const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(element);
      return { stop: element.dataset.stop, name: element.getAttribute("aria-label") ?? element.textContent.trim().slice(0, 40), tag: element.localName,
               focusVisible: (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none" };
    })()`);
    if (current === null || stops.some(({ stop }) => stop === current.stop)) break;
    stops.push(current);
  }
  return stops;
}

socket.onopen = async () => {
  const { targetId } = await call("Target.createTarget", { url: "about:blank" });
  session = (await call("Target.attachToTarget", { targetId, flatten: true })).sessionId;
  await call("Page.enable");
  await call("Page.navigate", { url: pageUrl });
  while ((await run("document.readyState")) !== "complete") await new Promise((resolve) => setTimeout(resolve, 50));
  await call("Page.bringToFront");
  await run(`(async () => { ${script} })()`);
  const stops = await tabStops();
  await call("Accessibility.enable");
  const { nodes } = await call("Accessibility.getFullAXTree");
  const tree = nodes.filter(({ ignored }) => !ignored).map(({ role, name, properties = [] }) => ({
    role: role?.value, name: name?.value ?? "", focusable: properties.some((property) => property.name === "focusable" && property.value.value),
    live: properties.find((property) => property.name === "live")?.value.value,
  }));
  console.log(JSON.stringify({ tree, stops }));
  socket.close();
};
