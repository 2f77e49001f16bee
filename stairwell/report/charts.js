// Line charts.
const MIN_WIDTH = 100; // pixels of a chart with its margins

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const trim = (value, digits = 3) => String(Number(value.toPrecision(digits)));

function formatCount(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${trim(value / size)} ${unit}`;
  }
  return trim(value);
}

// About `count` round numbers from low to high; `outward` adds the first one beyond.
function ticks(low, high, count, outward) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const values = [];
  const last = outward ? Math.ceil(high / step - 1e-9) : Math.floor(high / step + 1e-9);
  for (let i = Math.floor(low / step + 1e-9); i <= last; i++) values.push(Number((i * step).toPrecision(12)));
  return values;
}

// Draw a chart: { label, series: [{ name, color, stepped, thin, dots, faint, points: [[x, y]] }], x, y }, where an axis is
// { label, unit, format(value, exact), low, high, integers }. It is redrawn when its width changes, to keep the size of text.
function chart(box, spec) {
  let width = 0;
  const draw = () => {
    width = box.clientWidth;
    // A hidden or very narrow box has no space between the margins.
    if (width >= MIN_WIDTH) drawChart(box, spec, width);
  };
  if (box.observer) box.observer.disconnect();
  box.observer = new ResizeObserver(() => requestAnimationFrame(() => { if (box.clientWidth !== width) draw(); }));
  box.observer.observe(box);
  draw();
}

function drawChart(box, spec, W) {
  const H = W < 420 ? 250 : 290;
  const margin = { left: 48, right: 14, top: 12, bottom: 44 };
  const points = spec.series.flatMap((series) => series.points).filter(([x, y]) => isNumber(x) && isNumber(y));
  box.querySelector("svg")?.remove();
  const image = svg(null, "svg", { viewBox: `0 0 ${W} ${H}`, height: H, role: "img", "aria-label": spec.label });
  box.append(image);
  if (!points.length) {
    svg(image, "text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "no data yet");
    return;
  }
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const lowX = 0, highX = Math.max(...xs) || 1;
  const rounded = ticks(spec.y.low ?? Math.min(...ys), spec.y.high ?? Math.max(...ys), 5, true);
  const yTicks = spec.y.integers ? rounded.filter(Number.isInteger) : rounded;
  const lowY = rounded[0], highY = rounded.at(-1);
  const left = margin.left, right = W - margin.right, top = margin.top, bottom = H - margin.bottom;
  const X = (x) => left + ((x - lowX) / (highX - lowX)) * (right - left);
  const Y = (y) => bottom - ((y - lowY) / (highY - lowY || 1)) * (bottom - top);
  for (const y of yTicks) {
    svg(image, "line", { class: "grid", x1: left, x2: right, y1: Y(y), y2: Y(y) });
    svg(image, "text", { x: left - 8, y: Y(y) + 4, "text-anchor": "end" }, spec.y.format(y));
  }
  for (const x of ticks(lowX, highX, W < 420 ? 4 : 6)) {
    svg(image, "line", { class: "grid", x1: X(x), x2: X(x), y1: bottom, y2: bottom + 4 });
    svg(image, "text", { x: X(x), y: bottom + 18, "text-anchor": "middle" }, spec.x.format(x));
  }
  svg(image, "text", { x: (left + right) / 2, y: H - 6, "text-anchor": "middle" }, spec.x.label);
  for (const series of spec.series) drawSeries(image, series, X, Y);
  followPointer(image, spec, { left, right, top, bottom, X, Y, lowX, highX });
}

function drawSeries(image, series, X, Y) {
  const group = svg(image, "g", { style: color(series.color), opacity: series.faint ? 0.6 : 1 });
  let path = "", connected = false;
  for (const [x, y] of series.points) {
    if (!isNumber(x) || !isNumber(y)) {
      connected = false; // a gap where a number is missing
      continue;
    }
    if (connected && series.stepped) path += `H${X(x).toFixed(1)}V${Y(y).toFixed(1)}`;
    else path += `${connected ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`;
    connected = true;
  }
  const style = series.thin ? "line thin" : "line";
  svg(group, "path", { class: style, d: path, "stroke-dasharray": data.dashes[series.color] || "none" });
  for (const [x, y] of series.dots ? series.points : []) {
    if (isNumber(x) && isNumber(y)) svg(group, "circle", { class: "dot", cx: X(x), cy: Y(y), r: 3.6 });
  }
}

function nearest(points, x) {
  let best = null;
  for (const point of points) {
    if (isNumber(point[0]) && isNumber(point[1]) && (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x))) best = point;
  }
  return best;
}

// [name, value, color] of every line with a point near x; seeds of one model are averaged.
function meansNear(allSeries, x, tolerance) {
  const groups = new Map();
  for (const series of allSeries) {
    const point = nearest(series.points, x);
    if (!point || Math.abs(point[0] - x) > tolerance) continue;
    if (!groups.has(series.name)) groups.set(series.name, { values: [], color: series.color });
    groups.get(series.name).values.push(point[1]);
  }
  return [...groups].map(([name, { values, color: index }]) => {
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return [values.length > 1 ? `${name}, mean of ${values.length}` : name, mean, index];
  });
}

function followPointer(image, spec, area) {
  const guide = svg(image, "line", { class: "guide", y1: area.top, y2: area.bottom, visibility: "hidden" });
  const overlay = svg(image, "rect", {
    x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top, fill: "transparent",
  });
  overlay.addEventListener("pointermove", (event) => {
    const pixel = event.clientX - image.getBoundingClientRect().left;
    const x = area.lowX + ((pixel - area.left) / (area.right - area.left)) * (area.highX - area.lowX);
    const tolerance = (area.highX - area.lowX) * 0.08;
    const rows = meansNear(spec.series, x, tolerance).map(([name, y, index]) => [name, spec.y.format(y, true), index]);
    guide.setAttribute("x1", pixel);
    guide.setAttribute("x2", pixel);
    guide.setAttribute("visibility", "visible");
    if (rows.length) showTip(event, `${spec.x.format(x)} ${spec.x.unit}`, rows);
    else hideTip();
  });
  overlay.addEventListener("pointerleave", () => {
    guide.setAttribute("visibility", "hidden");
    hideTip();
  });
}

function timeUnit(seconds) {
  return seconds < 180 ? [1, "seconds"] : seconds < 3 * 3600 ? [60, "minutes"] : [3600, "hours"];
}

function axisX(name, runs) {
  if (name === "tokens") return { label: `${data.unit} trained on`, unit: data.unit, scale: 1, format: formatCount };
  const [scale, unit] = timeUnit(Math.max(1, ...runs.flatMap((run) => run.curves.seconds.concat(run.validations.map((v) => v.seconds)))));
  return { label: `training time, ${unit}`, unit, scale, format: (value) => trim(value) };
}

const isPercent = (metric) => /accuracy$|error$/.test(metric);

function axisY(metric) {
  if (isPercent(metric)) return { low: 0, high: 100, format: (value, exact) => (exact ? `${value.toFixed(1)}%` : `${value}%`) };
  return { format: (value, exact) => trim(value, exact ? 4 : 3) };
}

function learningSeries(metric, xName, scale) {
  // With several validations per run, training is drawn as a thin line behind them.
  const thin = data.models.some((model) => model.runs.some((run) => run.validations.length > 1));
  const training = [], validation = [];
  for (const model of data.models) {
    for (const run of model.runs) {
      const name = model.name;
      const base = { color: model.color, faint: model.runs.length > 1 };
      const values = run.curves[metric] || [];
      training.push({ ...base, thin, name: `${name}, training`, points: run.curves[xName].map((x, i) => [x / scale, values[i]]) });
      const points = run.validations.map((v) => [v[xName] / scale, v.scores[metric]]);
      validation.push({ ...base, dots: true, name: `${name}, validation`, points });
    }
  }
  return [...training, ...validation].filter((series) => series.points.some(([, y]) => isNumber(y)));
}

function describe(series, y) {
  const last = (points) => points.filter(([, value]) => isNumber(value)).at(-1);
  return series.filter((s) => last(s.points)).map((s) => `${s.name} ends at ${y.format(last(s.points)[1], true)}`).join("; ");
}

function drawLearning(metric) {
  const runs = data.models.flatMap((model) => model.runs);
  for (const xName of ["tokens", "seconds"]) {
    const x = axisX(xName, runs), y = axisY(metric);
    const series = learningSeries(metric, xName, x.scale);
    const name = metric.replaceAll("_", " ");
    const unit = metric === "loss" && data.unit === "tokens" ? ", nats per scored token" : "";
    const box = document.getElementById(`against-${xName}`);
    box.querySelector("h3").textContent = `${name[0].toUpperCase()}${name.slice(1)}${unit}, against ${xName === "tokens" ? data.unit : "time"}`;
    chart(box, { series, x, y, label: `${name} against ${x.label}: ${describe(series, y)}` });
  }
}

function drawStages() {
  const box = document.getElementById("stages");
  if (!box) return;
  const series = data.models.flatMap((model) => model.runs.filter((run) => run.curves.stage_name).map((run) => ({
    name: model.name, color: model.color, stepped: true, faint: model.runs.length > 1,
    points: run.curves.tokens.map((x, i) => [x, run.curves.stage[i]]),
  })));
  const y = { low: 0, integers: true, format: (value) => trim(value) };
  chart(box, { series, x: axisX("tokens"), y, label: `the curriculum over ${data.unit}: ${describe(series, y)}` });
}

function addLegend() {
  const list = document.getElementById("legend");
  for (const model of data.models) {
    const item = html(list, "li", { style: color(model.color) });
    const sample = svg(item, "svg", { viewBox: "0 0 30 12", "aria-hidden": "true" });
    svg(sample, "path", { class: "line", d: "M1 6H29", "stroke-dasharray": data.dashes[model.color] || "none" });
    svg(sample, "circle", { class: "dot", cx: 15, cy: 6, r: 4 });
    item.append(model.runs.length > 1 ? `${model.name}, ${model.runs.length} seeds` : model.name);
  }
}

function metricButtons() {
  const box = document.getElementById("metrics");
  const choose = (metric) => {
    for (const other of box.children) other.setAttribute("aria-pressed", String(other.dataset.metric === metric));
    drawLearning(metric);
  };
  for (const metric of data.metrics) button(box, metric.replaceAll("_", " "), () => choose(metric), { "data-metric": metric });
  if (data.metrics.length) choose(data.metrics[0]);
}

// The tooltips of the attention plots, which are part of the page.
function attentionTips() {
  for (const image of document.querySelectorAll("svg[data-model]")) {
    const { model, layer, head } = image.dataset;
    const { attention, color: index } = data.attention[model];
    const weights = attention.weights[layer][head];
    image.addEventListener("pointermove", (event) => {
      const column = stepAt(event, image, weights.length);
      const near = attention.first + column * attention.bin, far = near + attention.bin - 1;
      showTip(event, `distance ${near === far ? near : `${near} to ${far}`}`, [
        [`${attention.layers[layer]}, head ${Number(head) + 1}`, `${(100 * weights[column]).toFixed(1)}%`, index],
      ]);
    });
    image.addEventListener("pointerleave", hideTip);
  }
}

if (document.getElementById("legend")) {
  addLegend();
  metricButtons();
  drawStages();
}
attentionTips();
