// What a screen reader is told of a page, and where Tab leads: node accessible.js WEBSOCKET ADDRESS-OF-PAGE SCRIPT
const [, , socket, address, script] = process.argv;
const link = new WebSocket(socket);
const waiting = new Map();
let number = 0, session;

function ask(method, params = {}) {
  const id = ++number;
  link.send(JSON.stringify({ id, method, params, ...(session ? { sessionId: session } : {}) }));
  return new Promise((done, failed) => waiting.set(id, { done, failed }));
}

link.onmessage = ({ data }) => {
  const { id, result, error } = JSON.parse(data);
  if (!waiting.has(id)) return;
  const { done, failed } = waiting.get(id);
  waiting.delete(id);
  if (error) failed(new Error(error.message));
  else done(result);
};

const run = async (expression) => (await ask("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true })).result.value;

// Press Tab until the focus comes round: what has it, and whether one can see that.
async function tabs() {
  const found = [];
  for (let i = 0; i < 80; i++) {
    for (const type of ["keyDown", "keyUp"]) await ask("Input.dispatchKeyEvent", { type, key: "Tab", code: "Tab", windowsVirtualKeyCode: 9 });
    const now = await run(`(() => {
      const at = document.activeElement;
      if (!at || at === document.body) return null;
      at.dataset.stop ??= String(document.querySelectorAll("[data-stop]").length);
      const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(at);
      return { stop: at.dataset.stop, words: at.getAttribute("aria-label") ?? at.textContent.trim().slice(0, 40), tag: at.localName,
               seen: (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none" };
    })()`);
    if (now === null || found.some(({ stop }) => stop === now.stop)) break;
    found.push(now);
  }
  return found;
}

link.onopen = async () => {
  const { targetId } = await ask("Target.createTarget", { url: "about:blank" });
  session = (await ask("Target.attachToTarget", { targetId, flatten: true })).sessionId;
  await ask("Page.enable");
  await ask("Page.navigate", { url: address });
  while ((await run("document.readyState")) !== "complete") await new Promise((done) => setTimeout(done, 50));
  await ask("Page.bringToFront");
  await run(`(async () => { ${script} })()`);
  const stops = await tabs();
  await ask("Accessibility.enable");
  const { nodes } = await ask("Accessibility.getFullAXTree");
  const told = nodes.filter(({ ignored }) => !ignored).map(({ role, name, properties = [] }) => ({
    role: role?.value, name: name?.value ?? "", focusable: properties.some((one) => one.name === "focusable" && one.value.value),
    live: properties.find((one) => one.name === "live")?.value.value,
  }));
  console.log(JSON.stringify({ told, stops }));
  link.close();
};
