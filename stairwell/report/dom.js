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
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.095 ? 1 : 0)}%`;

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
