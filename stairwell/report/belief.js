// The random walk step by step: where the agent is, and how likely each model holds each cell to be.
const COMPASS = ["east", "north", "west", "south"];
const TURNS = [0, -90, 180, 90];
const TRAIL = 14;
const heat = (thousandths) => Math.sqrt(thousandths / 1000).toFixed(3);
const place = (cell, grid) => `row ${Math.floor(cell / grid) + 1}, column ${(cell % grid) + 1}`;

// What an action did, in words.
function happened(episode, step) {
  const heading = COMPASS[episode.headings[step]];
  const action = episode.actions[step];
  if (action === "reset") return "reset: the agent is put into the north-west corner, facing east";
  if (action !== "forward") return `${action}: it turns and now faces ${heading}`;
  const stays = episode.cells[step] === episode.cells[step - 1];
  return stays ? `forward: the edge in the ${heading} holds it back` : `forward: one cell to the ${heading}`;
}

function drawGrid(box, grid, label) {
  const picture = svg(box, "svg", { viewBox: `-0.1 -0.1 ${grid + 0.2} ${grid + 0.2}`, role: "img", "aria-label": label });
  const cells = [];
  for (let cell = 0; cell < grid * grid; cell++) {
    const size = { x: (cell % grid) + 0.04, y: Math.floor(cell / grid) + 0.04, width: 0.92, height: 0.92, rx: 0.12 };
    svg(picture, "rect", { class: "cell", ...size });
    cells.push(svg(picture, "rect", { class: "heat", ...size, "fill-opacity": 0 }));
  }
  return { picture, cells };
}

const ARROW = "M-0.26 -0.24L0.32 0L-0.26 0.24L-0.12 0Z";

function moveAgent(arrow, cell, heading, grid) {
  arrow.setAttribute("transform", `translate(${(cell % grid) + 0.5} ${Math.floor(cell / grid) + 0.5}) rotate(${TURNS[heading]})`);
}

class Truth {
  constructor(parent, grid) {
    this.grid = grid;
    const box = html(parent, "figure", { class: "card walk", style: "margin: 0" });
    html(box, "h3", {}, "The truth");
    this.picture = drawGrid(box, grid, "where the agent is").picture;
    this.trail = svg(this.picture, "g");
    this.arrow = svg(this.picture, "path", { class: "agent", d: ARROW });
    this.says = html(box, "p", { class: "says" });
  }

  show(episode, step) {
    const middle = (cell) => [(cell % this.grid) + 0.5, Math.floor(cell / this.grid) + 0.5];
    this.trail.replaceChildren();
    for (let i = Math.max(1, step - TRAIL + 1); i <= step; i++) {
      const [x1, y1] = middle(episode.cells[i - 1]), [x2, y2] = middle(episode.cells[i]);
      svg(this.trail, "line", { class: "trail", x1, y1, x2, y2, opacity: (1 - (step - i) / TRAIL).toFixed(2) });
    }
    moveAgent(this.arrow, episode.cells[step], episode.headings[step], this.grid);
    this.says.textContent = `In ${place(episode.cells[step], this.grid)}, facing ${COMPASS[episode.headings[step]]}.`;
  }
}

class Mind {
  constructor(parent, grid, model) {
    this.grid = grid;
    const box = html(parent, "figure", { class: "card walk", style: `margin: 0; ${color(model.color)}` });
    const title = html(box, "h3");
    html(title, "span", { class: "swatch" });
    title.append(model.name);
    const { picture, cells } = drawGrid(box, grid, `where ${model.name} believes the agent to be`);
    this.cells = cells;
    this.said = svg(picture, "rect", { class: "said", width: 0.92, height: 0.92, rx: 0.12 });
    this.arrow = svg(picture, "path", { class: "agent", d: ARROW });
    this.says = html(box, "p", { class: "says" });
  }

  show(episode, step, mind, right) {
    const answer = mind.answers[step], cell = episode.cells[step], believed = mind.probabilities[step];
    this.cells.forEach((rect, i) => rect.setAttribute("fill-opacity", heat(believed[i])));
    this.said.setAttribute("x", (answer % this.grid) + 0.04);
    this.said.setAttribute("y", Math.floor(answer / this.grid) + 0.04);
    moveAgent(this.arrow, cell, episode.headings[step], this.grid);
    this.says.replaceChildren();
    html(this.says, "b", {}, answer === cell ? "✓ right" : "✗ wrong");
    this.says.append(`: ${(believed[answer] / 10).toFixed(0)}% sure of ${place(answer, this.grid)}.`);
    html(this.says, "br");
    this.says.append(step ? `Right so far: ${right} of ${step} (${((100 * right) / step).toFixed(0)}%)` : "Nothing scored yet");
    return answer === cell;
  }
}

// A row of one mark a step: full where the model gave the true cell all its trust, empty where it gave none.
class Strip {
  constructor(parent, model, jump) {
    this.box = html(parent, "div", { class: "strip", style: color(model.color) });
    const name = html(this.box, "span");
    html(name, "span", { class: "swatch" });
    name.append(model.name);
    this.picture = svg(this.box, "svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.percent = html(this.box, "span", { class: "percent" });
    const at = (event) => {
      const box = this.picture.getBoundingClientRect();
      return Math.min(this.steps - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * this.steps)));
    };
    this.picture.addEventListener("click", (event) => jump(at(event)));
    this.picture.addEventListener("pointermove", (event) => {
      const step = at(event);
      showTip(event, `step ${step}`, [[`${model.name}: the true cell`, `${(this.trust[step] / 10).toFixed(0)}%`, model.color]]);
    });
    this.picture.addEventListener("pointerleave", hideTip);
  }

  load(episode, mind) {
    this.steps = episode.cells.length;
    this.trust = mind.probabilities.map((row, step) => row[episode.cells[step]]);
    this.picture.replaceChildren();
    this.picture.setAttribute("viewBox", `0 0 ${this.steps} 1`);
    this.trust.forEach((trust, x) => svg(this.picture, "rect", { class: "heat", x, y: 0, width: 1, height: 1, "fill-opacity": (trust / 1000).toFixed(3) }));
    this.now = svg(this.picture, "rect", { class: "now", y: 0, width: 1, height: 1 });
    const right = mind.answers.filter((answer, step) => step && answer === episode.cells[step]).length;
    this.percent.textContent = `${((100 * right) / Math.max(1, this.steps - 1)).toFixed(0)}%`;
    this.percent.title = "of the whole episode's steps right";
  }
}

class Walk extends Player {
  constructor(root, walk) {
    super(root, "step of the walk");
    this.walk = walk;
    this.choose(walk.episodes.length);
    const grids = html(root, "div", { class: "walks" });
    this.truth = new Truth(grids, walk.grid);
    this.minds = walk.models.map((model) => new Mind(grids, walk.grid, model));
    this.legend(root);
    const strips = html(root, "div", { class: "card strips" });
    html(strips, "h3", {}, "Probability given to the true cell, from the first step to the last");
    this.strips = walk.models.map((model) => new Strip(strips, model, (step) => this.jump(step)));
    html(strips, "p", { class: "caption" }, "Full color: certain of the truth; empty: gave it no chance. On the right: how many steps of this episode were answered correctly. Click to go to a step.");
    this.load(0);
  }

  choose(episodes) {
    if (episodes < 2) return;
    const choice = html(this.options, "select", { "aria-label": "episode" });
    for (let i = 0; i < episodes; i++) html(choice, "option", { value: i }, `episode ${i + 1}`);
    choice.addEventListener("change", () => this.load(Number(choice.value)));
  }

  legend(root) {
    const key = html(root, "div", { class: "key" });
    const sample = (draw, words) => {
      const item = html(key, "span");
      draw(svg(item, "svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }));
      item.append(words);
    };
    sample((s) => svg(s, "path", { class: "agent", d: ARROW, transform: "translate(0.5 0.5)" }), "the agent, pointing where it faces");
    sample((s) => svg(s, "rect", { class: "said", x: 0.08, y: 0.08, width: 0.84, height: 0.84, rx: 0.12 }), "the model's answer");
    const ramp = html(key, "span", {}, "probability: 0");
    const stops = [0, 5, 20, 50, 100].map((p) => `color-mix(in srgb, var(--soft) ${Math.sqrt(p / 100) * 100}%, var(--faint)) ${p}%`);
    html(ramp, "span", { class: "ramp", style: `background: linear-gradient(90deg, ${stops.join(", ")})` });
    ramp.append("1, in the model's color");
  }

  load(number) {
    this.stop();
    this.number = number;
    this.episode = this.walk.episodes[number];
    this.strips.forEach((strip, i) => strip.load(this.episode, this.walk.models[i].minds[number]));
    // How many answers each model got right up to each step; the reset is not scored.
    this.right = this.walk.models.map((model) => {
      let right = 0;
      return model.minds[number].answers.map((answer, step) => (right += step && answer === this.episode.cells[step] ? 1 : 0));
    });
    this.go(Math.floor((this.episode.cells.length - 1) / 2));
  }

  get last() {
    return this.episode.cells.length - 1;
  }

  show(step) {
    const words = happened(this.episode, step);
    this.truth.show(this.episode, step);
    const verdicts = this.minds.map((mind, i) => {
      const model = this.walk.models[i];
      const right = mind.show(this.episode, step, model.minds[this.number], this.right[i][step]);
      return `${model.name} is ${right ? "right" : "wrong"}`;
    });
    this.strips.forEach((strip) => strip.now.setAttribute("x", step));
    return { words, spoken: `${words}; ${verdicts.join(", ")}` };
  }
}

for (const root of document.querySelectorAll("[data-walk]")) new Walk(root, data.walks[root.dataset.walk]);
