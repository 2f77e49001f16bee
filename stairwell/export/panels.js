// Panels of both pages: announcements for screen readers, bars, and attention.

function announce(text) {
  document.getElementById("live").textContent = text;
}

// Horizontal bars; a row is [name, share, highlighted].
function bars(parent, rows, className = "") {
  const box = html(parent, "div", { class: `bars ${className}`.trim() });
  for (const [name, share, highlighted] of rows) {
    appendName(html(box, "span", highlighted ? { class: "strong" } : {}), name);
    html(html(box, "div", { class: "track" }), "div", { class: "fill", style: `width: ${(100 * share).toFixed(1)}%` });
    html(box, "span", { class: "percent" }, percent(share));
  }
  return box;
}

// The indices of the `count` largest values, largest first.
function topIndices(values, count) {
  const top = [];
  for (let i = 0; i < values.length; i++) {
    if (top.length === count && !(values[i] > values[top[count - 1]])) continue;
    const position = top.findIndex((other) => values[i] > values[other]);
    top.splice(position < 0 ? top.length : position, 0, i);
    if (top.length > count) top.pop();
  }
  return top;
}

// The names of `count` entries of the attention, which are ordered by pass, then by layer.
function layerNames(model, count) {
  const { layers } = model.header.core;
  const pass = (i) => (count > layers ? `pass ${Math.floor(i / layers) + 1}, ` : "");
  return Array.from({ length: count }, (_, i) => `${pass(i)}layer ${(i % layers) + 1}`);
}

// The share of each layer in the memory, for models that learn it.
function memoryBars(parent, model) {
  const memories = model.engine.layerWeights;
  if (!memories) return;
  html(parent, "h4", {}, "Memory composition");
  memories.forEach((shares, g) => {
    if (memories.length > 1) html(parent, "p", { class: "note" }, `memory of layer ${g + 1}`);
    bars(parent, Array.from(shares, (share, l) => [l ? `layer ${l}` : "embedding", share]));
  });
}

// The attention of each head by distance, nearest on the left. `tokenAt(distance)` returns the name of a token or frame.
function attentionPlots(parent, names, attention, tokenAt, unit = "tokens") {
  const box = html(parent, "div", { class: "heads" });
  const columns = Math.max(1, ...attention.map((layer) => layer.weights[0].length));
  attention.forEach((layer, i) => {
    html(box, "span", { class: "layer" }, names[i]);
    layer.weights.forEach((weights, h) => {
      const peak = weights.reduce((best, weight, j) => (weight > weights[best] ? j : best), 0);
      const weight = weights[peak] ?? 0, distance = peak + layer.first;
      const description = weight ? `${percent(weight)} on ${tokenAt(distance)}, ${distance ? `distance ${distance}` : "the current token"}` : "the memory is empty";
      html(box, "span", { class: "label" }, `head ${h + 1}`);
      const image = svg(box, "svg", { viewBox: `0 0 ${columns} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `${names[i]}, head ${h + 1}: ${description}` });
      svg(image, "path", { d: columnPath(weights, weight) });
      html(box, "span", { class: "peak", title: description }, weight ? `${percent(weight)} ${tokenAt(distance)}` : "–");
    });
  });
  const first = attention[0]?.first ?? 1, axis = html(box, "div", { class: "axis" });
  for (const text of [first, `distance, ${unit}`, first + columns - 1]) html(axis, "span", {}, text);
}

// Heights grow with the square root, so that small weights stay visible.
function columnPath(weights, highest) {
  return Array.from(weights, (weight, x) => {
    const height = 0.96 * Math.sqrt(weight / (highest || 1));
    return height > 0.01 ? `M${x + 0.08} 1V${(1 - height).toFixed(3)}H${x + 0.92}V1Z` : "";
  }).join("");
}
