// Helpers of all pages: elements, colors, percentages. `data` is the JSON of the page.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = document.getElementById("mark").namespaceURI;

function setUp(element, parent, attributes, text) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

const svg = (parent, name, attributes = {}, text) => setUp(document.createElementNS(SVG, name), parent, attributes, text);
const html = (parent, name, attributes = {}, text) => setUp(document.createElement(name), parent, attributes, text);
const color = (index) => `--c: var(--c${index})`;

// One decimal where whole percents would hide the difference from 0 or 1: 99.6% is not 100%.
function percent(share) {
  if (share > 0 && share < 0.0005) return "<0.1%";
  if (share < 1 && share >= 0.9995) return ">99.9%";
  return `${(100 * share).toFixed((share > 0 && share < 0.095) || (share > 0.9 && share < 1) ? 1 : 0)}%`;
}

// Append a name that may break only at spaces and after / - _ , not inside words.
function appendName(parent, name) {
  name.split(/(?<=[/_-])(?=.)/).forEach((part, i) => parent.append(...(i ? [document.createElement("wbr"), part] : [part])));
  return parent;
}

function button(parent, text, onClick, attributes = {}) {
  const element = html(parent, "button", { type: "button", ...attributes }, text);
  element.addEventListener("click", onClick);
  return element;
}

// The name of a model with its color.
function heading(parent, name) {
  const title = html(parent, "h3");
  html(title, "span", { class: "swatch" });
  title.append(name);
  return title;
}

// The index of the step under the pointer in an image with one mark per step.
function stepAt(event, image, steps) {
  const box = image.getBoundingClientRect();
  return Math.min(steps - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * steps)));
}
