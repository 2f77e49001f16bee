// Small charts without a library: axes, lines, dots, values under the pointer. `data` is what the page was made from.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = document.getElementById("mark").namespaceURI;
const DASHES = ["", "", "", "7 4", "2 4", "9 3 2 3", "4 3", "1 4"];
const NARROWEST = 100;  // pixels of a chart with its margins
const tip = document.getElementById("tip");

function svg(parent, name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function html(parent, name, attributes = {}, text) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

const color = (index) => `--c: var(--c${index})`;
const known = (value) => typeof value === "number" && Number.isFinite(value);
const trim = (value, digits = 3) => String(Number(value.toPrecision(digits)));

function countText(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${trim(value / size)} ${unit}`;
  }
  return trim(value);
}

function showTip(event, title, rows) {
  tip.replaceChildren();
  html(tip, "b", {}, title);
  for (const [name, value, index] of rows) {
    const row = html(tip, "div");
    const label = html(row, "span");
    if (index !== undefined) html(label, "span", { class: "swatch", style: color(index) });
    label.append(name);
    html(row, "span", {}, value);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
  const top = Math.min(event.clientY + 12, innerHeight - box.height - 8);
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}

const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });

// Round numbers from low to high, about `wanted` of them; `outward` includes the next one beyond.
function ticks(low, high, wanted, outward) {
  const rough = (high - low || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  const last = outward ? Math.ceil(high / step - 1e-9) : Math.floor(high / step + 1e-9);
  for (let i = Math.floor(low / step + 1e-9); i <= last; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// A chart in `box`: { label, series: [{ name, color, kind: line|step, thin, dots, faint, points: [[x, y]] }], x, y }, where an axis
// is { label, text(value), low, high }. It is drawn again whenever its width changes, so that letters keep their size.
function chart(box, spec) {
  let width = 0;
  const draw = () => {
    width = box.clientWidth;
    // A panel that is hidden, or nearly so, has no room between a chart's margins.
    if (width >= NARROWEST) drawChart(box, spec, width);
  };
  if (box.watcher) box.watcher.disconnect();
  box.watcher = new ResizeObserver(() => requestAnimationFrame(() => { if (box.clientWidth !== width) draw(); }));
  box.watcher.observe(box);
  draw();
}

function drawChart(box, spec, W) {
  const H = W < 420 ? 250 : 290;
  const margin = { left: 48, right: 14, top: 12, bottom: 44 };
  const all = spec.series.flatMap((series) => series.points).filter(([x, y]) => known(x) && known(y));
  box.querySelector("svg")?.remove();
  const picture = svg(null, "svg", { viewBox: `0 0 ${W} ${H}`, height: H, role: "img", "aria-label": spec.label });
  box.append(picture);
  if (!all.length) {
    svg(picture, "text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "nothing measured yet");
    return;
  }
  const xs = all.map(([x]) => x), ys = all.map(([, y]) => y);
  const lowX = 0, highX = Math.max(...xs) || 1;
  const round = ticks(spec.y.low ?? Math.min(...ys), spec.y.high ?? Math.max(...ys), 5, true);
  const yTicks = spec.y.whole ? round.filter(Number.isInteger) : round;
  const lowY = round[0], highY = round.at(-1);
  const left = margin.left, right = W - margin.right, top = margin.top, bottom = H - margin.bottom;
  const X = (x) => left + ((x - lowX) / (highX - lowX)) * (right - left);
  const Y = (y) => bottom - ((y - lowY) / (highY - lowY || 1)) * (bottom - top);
  for (const y of yTicks) {
    svg(picture, "line", { class: "grid", x1: left, x2: right, y1: Y(y), y2: Y(y) });
    svg(picture, "text", { x: left - 8, y: Y(y) + 4, "text-anchor": "end" }, spec.y.text(y));
  }
  for (const x of ticks(lowX, highX, W < 420 ? 4 : 6)) {
    svg(picture, "line", { class: "grid", x1: X(x), x2: X(x), y1: bottom, y2: bottom + 4 });
    svg(picture, "text", { x: X(x), y: bottom + 18, "text-anchor": "middle" }, spec.x.text(x));
  }
  svg(picture, "text", { x: (left + right) / 2, y: H - 6, "text-anchor": "middle" }, spec.x.label);
  for (const series of spec.series) drawSeries(picture, series, X, Y);
  followPointer(picture, spec, { left, right, top, bottom, X, Y, lowX, highX });
}

function drawSeries(picture, series, X, Y) {
  const group = svg(picture, "g", { style: color(series.color), opacity: series.faint ? 0.6 : 1 });
  let path = "", pen = false;
  for (const [x, y] of series.points) {
    if (!known(x) || !known(y)) {
      pen = false;  // a gap where a number is missing
      continue;
    }
    if (pen && series.kind === "step") path += `H${X(x).toFixed(1)}V${Y(y).toFixed(1)}`;
    else path += `${pen ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`;
    pen = true;
  }
  const style = series.thin ? "line thin" : "line";
  svg(group, "path", { class: style, d: path, "stroke-dasharray": DASHES[series.color] || "none" });
  for (const [x, y] of series.dots ? series.points : []) {
    if (known(x) && known(y)) svg(group, "circle", { class: "dot", cx: X(x), cy: Y(y), r: 3.6 });
  }
}

function nearest(points, x) {
  let best = null;
  for (const point of points) {
    if (known(point[0]) && known(point[1]) && (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x))) best = point;
  }
  return best;
}

// [name, value, color] of every line that comes near x; seeds of one model are averaged.
function meansNear(all, x, reach) {
  const found = new Map();
  for (const series of all) {
    const point = nearest(series.points, x);
    if (!point || Math.abs(point[0] - x) > reach) continue;
    if (!found.has(series.name)) found.set(series.name, { values: [], color: series.color });
    found.get(series.name).values.push(point[1]);
  }
  return [...found].map(([name, { values, color: index }]) => {
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return [values.length > 1 ? `${name}, mean of ${values.length}` : name, mean, index];
  });
}

function followPointer(picture, spec, area) {
  const guide = svg(picture, "line", { class: "guide", y1: area.top, y2: area.bottom, visibility: "hidden" });
  const overlay = svg(picture, "rect", {
    x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top, fill: "transparent",
  });
  overlay.addEventListener("pointermove", (event) => {
    const place = event.clientX - picture.getBoundingClientRect().left;
    const x = area.lowX + ((place - area.left) / (area.right - area.left)) * (area.highX - area.lowX);
    const reach = (area.highX - area.lowX) * 0.08;
    const rows = meansNear(spec.series, x, reach).map(([name, y, index]) => [name, spec.y.text(y, true), index]);
    guide.setAttribute("x1", place);
    guide.setAttribute("x2", place);
    guide.setAttribute("visibility", "visible");
    if (rows.length) showTip(event, `${spec.x.text(x)} ${spec.x.unit}`, rows);
    else hideTip();
  });
  overlay.addEventListener("pointerleave", () => {
    guide.setAttribute("visibility", "hidden");
    hideTip();
  });
}

// Which unit fits a number of seconds.
function timeUnit(seconds) {
  return seconds < 180 ? [1, "seconds"] : seconds < 3 * 3600 ? [60, "minutes"] : [3600, "hours"];
}

function axisX(kind, runs) {
  if (kind === "tokens") return { label: `${data.unit} trained on`, unit: data.unit, scale: 1, text: countText };
  const [scale, unit] = timeUnit(Math.max(1, ...runs.flatMap((run) => run.curves.seconds.concat(run.validations.map((v) => v.seconds)))));
  return { label: `training time, ${unit}`, unit, scale, text: (value) => trim(value) };
}

const isPercent = (metric) => /accuracy$|error$/.test(metric);

function axisY(metric) {
  if (isPercent(metric)) return { low: 0, high: 100, text: (value, exact) => (exact ? `${value.toFixed(1)}%` : `${value}%`) };
  return { text: (value, exact) => trim(value, exact ? 4 : 3) };
}

function learningSeries(metric, kind, scale) {
  // Where models were validated along the way, that is what counts; else the training curve has to tell.
  const thin = data.models.some((model) => model.runs.some((run) => run.validations.length > 1));
  const training = [], validation = [];
  for (const model of data.models) {
    for (const run of model.runs) {
      const name = model.name;
      const base = { color: model.color, kind: "line", faint: model.runs.length > 1 };
      const values = run.curves[metric] || [];
      training.push({ ...base, thin, name: `${name}, training`, points: run.curves[kind].map((x, i) => [x / scale, values[i]]) });
      const points = run.validations.map((v) => [v[kind] / scale, v.scores[metric]]);
      validation.push({ ...base, dots: true, name: `${name}, validation`, points });
    }
  }
  return [...training, ...validation].filter((series) => series.points.some(([, y]) => known(y)));
}

function describe(series, y) {
  const last = (points) => points.filter(([, value]) => known(value)).at(-1);
  return series.filter((s) => last(s.points)).map((s) => `${s.name} ends at ${y.text(last(s.points)[1], true)}`).join("; ");
}

function drawLearning(metric) {
  const runs = data.models.flatMap((model) => model.runs);
  for (const kind of ["tokens", "seconds"]) {
    const x = axisX(kind, runs), y = axisY(metric);
    const series = learningSeries(metric, kind, x.scale);
    const name = metric.replaceAll("_", " ");
    const unit = metric === "loss" && data.unit === "tokens" ? ", nats per scored token" : "";
    const box = document.getElementById(`against-${kind}`);
    box.querySelector("h3").textContent = `${name[0].toUpperCase()}${name.slice(1)}${unit}, against ${kind === "tokens" ? data.unit : "time"}`;
    chart(box, { series, x, y, label: `${name} against ${x.label}: ${describe(series, y)}` });
  }
}

function drawStages() {
  const box = document.getElementById("stages");
  if (!box) return;
  const series = data.models.flatMap((model) => model.runs.filter((run) => run.curves.stage_name).map((run) => ({
    name: model.name, color: model.color, kind: "step", faint: model.runs.length > 1,
    points: run.curves.tokens.map((x, i) => [x, run.curves.stage[i]]),
  })));
  const y = { low: 0, whole: true, text: (value) => trim(value) };
  chart(box, { series, x: axisX("tokens"), y, label: `the curriculum over ${data.unit}: ${describe(series, y)}` });
}

function legend() {
  const list = document.getElementById("legend");
  for (const model of data.models) {
    const item = html(list, "li", { style: color(model.color) });
    const sample = svg(item, "svg", { viewBox: "0 0 30 12", "aria-hidden": "true" });
    svg(sample, "path", { class: "line", d: "M1 6H29", "stroke-dasharray": DASHES[model.color] || "none" });
    svg(sample, "circle", { class: "dot", cx: 15, cy: 6, r: 4 });
    item.append(model.runs.length > 1 ? `${model.name}, ${model.runs.length} seeds` : model.name);
  }
}

function chooseMetric() {
  const box = document.getElementById("metrics");
  const press = (button) => {
    for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
    drawLearning(button.dataset.metric);
  };
  for (const metric of data.metrics) {
    const button = html(box, "button", { type: "button", "data-metric": metric }, metric.replaceAll("_", " "));
    button.addEventListener("click", () => press(button));
  }
  if (box.children.length) press(box.children[0]);
}

// The value under the pointer in the pictures of attention, which are in the page already.
function attentionTips() {
  for (const picture of document.querySelectorAll("svg[data-run]")) {
    const { run, layer, head } = picture.dataset;
    const { attention, color: index } = data.attention[run];
    const weights = attention.weights[layer][head];
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const column = Math.min(weights.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * weights.length)));
      const near = attention.first + column * attention.bin, far = near + attention.bin - 1;
      showTip(event, near === far ? `${near} back` : `${near} to ${far} back`, [
        [`${attention.layers[layer]}, head ${Number(head) + 1}`, `${(100 * weights[column]).toFixed(1)}%`, index],
      ]);
    });
    picture.addEventListener("pointerleave", hideTip);
  }
}

if (document.getElementById("legend")) {
  legend();
  chooseMetric();
  drawStages();
}
attentionTips();
