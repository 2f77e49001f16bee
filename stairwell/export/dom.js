// Small helpers that all pages use: elements, words, and what a model attends to.
const SVG = document.getElementById("mark").namespaceURI;

function put(element, parent, attributes, text) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

const svg = (parent, name, attributes = {}, text) => put(document.createElementNS(SVG, name), parent, attributes, text);
const html = (parent, name, attributes = {}, text) => put(document.createElement(name), parent, attributes, text);
const color = (index) => `--c: var(--c${index % 8})`;
const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.095 ? 1 : 0)}%`;

// For screen readers: the last thing said is read out.
function say(words) {
  document.getElementById("live").textContent = words;
}

function button(parent, words, press, attributes = {}) {
  const made = html(parent, "button", { type: "button", ...attributes }, words);
  made.addEventListener("click", press);
  return made;
}

function heading(parent, model) {
  const title = html(parent, "h3");
  html(title, "span", { class: "swatch" });
  title.append(model.name);
  return title;
}

// Rows of [name, share, whether it stands out], as horizontal bars.
function bars(parent, rows, kind = "") {
  const box = html(parent, "div", { class: `bars ${kind}`.trim() });
  for (const [name, share, strong] of rows) {
    html(box, "span", strong ? { class: "strong" } : {}, name);
    html(html(box, "div", { class: "track" }), "div", { class: "fill", style: `width: ${(100 * share).toFixed(1)}%` });
    html(box, "span", { class: "percent" }, percent(share));
  }
  return box;
}

// The numbers of the most likely labels, the likeliest first.
function likeliest(chances, count) {
  const found = [];
  for (let i = 0; i < chances.length; i++) {
    if (found.length === count && !(chances[i] > chances[found[count - 1]])) continue;
    const place = found.findIndex((other) => chances[i] > chances[other]);
    found.splice(place < 0 ? found.length : place, 0, i);
    if (found.length > count) found.pop();
  }
  return found;
}

// What the entries of an attention are called: layers come pass by pass.
function layerNames(model, depth) {
  const { layers } = model.header.core;
  const pass = (i) => (depth > layers ? `pass ${Math.floor(i / layers) + 1}, ` : "");
  return Array.from({ length: depth }, (_, i) => `${pass(i)}layer ${(i % layers) + 1}`);
}

// What the memory is made of, where a model learns that.
function memoryBars(parent, model) {
  const mixes = model.engine.layerWeights;
  if (!mixes) return;
  html(parent, "h4", {}, "What its memory is made of");
  mixes.forEach((mix, g) => {
    if (mixes.length > 1) html(parent, "p", { class: "note" }, `the memory that layer ${g + 1} reads`);
    bars(parent, Array.from(mix, (share, l) => [l ? `layer ${l}` : "embedding", share]));
  });
}

// A row of columns for every head: the share of its attention by distance, the nearest on the left.
function headRows(parent, names, attention, tokenAt) {
  const box = html(parent, "div", { class: "heads" });
  const slots = Math.max(1, ...attention.map((layer) => layer.weights[0].length));
  attention.forEach((layer, i) => {
    html(box, "span", { class: "layer" }, names[i]);
    layer.weights.forEach((weights, h) => {
      const peak = weights.reduce((best, weight, j) => (weight > weights[best] ? j : best), 0);
      const share = weights[peak] ?? 0, distance = peak + layer.first;
      const where = share ? `${percent(share)} on ${tokenAt(distance)}, ${distance ? `${distance} back` : "itself"}` : "nothing to look at yet";
      html(box, "span", { class: "label" }, `head ${h + 1}`);
      const picture = svg(box, "svg", { viewBox: `0 0 ${slots} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `${names[i]}, head ${h + 1}: most of it, ${where}` });
      svg(picture, "path", { d: columns(weights, share) });
      html(box, "span", { class: "peak", title: where }, share ? `${percent(share)} ${tokenAt(distance)}` : "–");
    });
  });
  const first = attention[0]?.first ?? 1, axis = html(box, "div", { class: "axis" });
  for (const words of [first, "tokens back", first + slots - 1]) html(axis, "span", {}, words);
}

// Heights grow with the square root, so that small shares stay visible.
function columns(heights, highest) {
  return Array.from(heights, (height, x) => {
    const tall = 0.96 * Math.sqrt(height / (highest || 1));
    return tall > 0.01 ? `M${x + 0.08} 1V${(1 - tall).toFixed(3)}H${x + 0.92}V1Z` : "";
  }).join("");
}
