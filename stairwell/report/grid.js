// The grid of the random walk: the agent as an arrow, and the probability of each cell as color.
const COMPASS = ["east", "north", "west", "south"];
const ROTATIONS = [0, -90, 180, 90];
const TRAIL = 14; // steps of the agent's path that are drawn
const ARROW = "M-0.26 -0.24L0.32 0L-0.26 0.24L-0.12 0Z";

const cellName = (cell, size) => `row ${Math.floor(cell / size) + 1}, column ${(cell % size) + 1}`;

function describeAction(action, heading, moved) {
  if (action === "reset") return "reset: the agent is in the north-west corner, facing east";
  if (action !== "forward") return `${action}: the agent turns and faces ${COMPASS[heading]}`;
  return moved ? `forward: one cell ${COMPASS[heading]}` : `forward: blocked by the edge in the ${COMPASS[heading]}`;
}

class Grid {
  constructor(parent, size, label) {
    this.size = size;
    this.image = svg(parent, "svg", { viewBox: `-0.1 -0.1 ${size + 0.2} ${size + 0.2}`, role: "img", "aria-label": label });
    this.cells = Array.from({ length: size * size }, (_, cell) => {
      const square = { x: (cell % size) + 0.04, y: Math.floor(cell / size) + 0.04, width: 0.92, height: 0.92, rx: 0.12 };
      svg(this.image, "rect", { class: "cell", ...square });
      return svg(this.image, "rect", { class: "heat", ...square, "fill-opacity": 0 });
    });
    this.overlay = svg(this.image, "g");
    this.arrow = svg(this.image, "path", { class: "agent", d: ARROW });
  }

  center(cell) { return [(cell % this.size) + 0.5, Math.floor(cell / this.size) + 0.5]; }

  moveAgent(cell, heading) {
    const [x, y] = this.center(cell);
    this.arrow.setAttribute("transform", `translate(${x} ${y}) rotate(${ROTATIONS[heading]})`);
  }
}

// The true position of the agent and its path.
class TruthCard {
  constructor(parent, size) {
    const box = html(parent, "figure", { class: "card walk" });
    html(box, "h3", {}, "Ground truth");
    this.grid = new Grid(box, size, "where the agent is");
    this.status = html(box, "p", { class: "status" });
  }

  // `path` is the cells so far, the current one last.
  show(path, heading) {
    const recent = path.slice(-TRAIL - 1), last = recent.length - 1;
    this.grid.overlay.replaceChildren();
    for (let i = 1; i <= last; i++) {
      const [x1, y1] = this.grid.center(recent[i - 1]), [x2, y2] = this.grid.center(recent[i]);
      svg(this.grid.overlay, "line", { class: "trail", x1, y1, x2, y2, opacity: (1 - (last - i) / TRAIL).toFixed(2) });
    }
    this.grid.moveAgent(recent[last], heading);
    this.status.textContent = `In ${cellName(recent[last], this.grid.size)}, facing ${COMPASS[heading]}.`;
  }
}

// The probabilities of a model.
class PredictionGrid extends Grid {
  constructor(parent, size, name) {
    super(parent, size, `where ${name} predicts the agent`);
    this.answer = svg(this.overlay, "rect", { class: "answer", width: 0.92, height: 0.92, rx: 0.12 });
  }

  show(probabilities, answer, cell, heading) {
    this.cells.forEach((rect, i) => rect.setAttribute("fill-opacity", Math.sqrt(probabilities[i]).toFixed(3)));
    const [x, y] = this.center(answer);
    this.answer.setAttribute("x", x - 0.46);
    this.answer.setAttribute("y", y - 0.46);
    this.moveAgent(cell, heading);
  }
}

function gridLegend(parent) {
  const legend = html(parent, "div", { class: "key" });
  const entry = (draw, text) => {
    const item = html(legend, "span");
    draw(svg(item, "svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }));
    item.append(text);
  };
  entry((s) => svg(s, "path", { class: "agent", d: ARROW, transform: "translate(0.5 0.5)" }), "the agent and its heading");
  entry((s) => svg(s, "rect", { class: "answer", x: 0.08, y: 0.08, width: 0.84, height: 0.84, rx: 0.12 }), "the model's answer");
  const ramp = html(legend, "span", {}, "probability: 0");
  const stops = [0, 5, 20, 50, 100].map((p) => `color-mix(in srgb, var(--soft) ${Math.sqrt(p / 100) * 100}%, var(--faint)) ${p}%`);
  html(ramp, "span", { class: "ramp", style: `background: linear-gradient(90deg, ${stops.join(", ")})` });
  ramp.append("1, in the model's color");
}
