// State tracking: press a symbol and watch what the models believe, beside the truth where the task's rule is known.
const COMPASS = ["east", "north", "west", "south"];
const TURNS = [0, -90, 180, 90];
const TRAIL = 14;
const ARROW = "M-0.26 -0.24L0.32 0L-0.26 0.24L-0.12 0Z";
const PLAYED = 50;
const STRIP = 200;
const MANY = 12; // labels that fit into one card; of more only the likeliest are shown

// What should be said after each symbol: by the task's machine, or as a sample of its test split has it.
class Truth {
  constructor({ machine }) {
    this.machine = machine;
    this.begin();
  }

  begin() { this.state = this.machine ? 0 : null; }

  // A label that a sample gives is believed; without machine and sample nothing is known.
  step(symbol, given = null) {
    if (!this.machine) return given;
    this.state = this.machine.next[this.state][symbol];
    return this.machine.label[this.state];
  }
}

class Grid {
  constructor(parent, size, label) {
    this.size = size;
    this.picture = svg(parent, "svg", { viewBox: `-0.1 -0.1 ${size + 0.2} ${size + 0.2}`, role: "img", "aria-label": label });
    this.cells = Array.from({ length: size * size }, (_, cell) => {
      const square = { x: (cell % size) + 0.04, y: Math.floor(cell / size) + 0.04, width: 0.92, height: 0.92, rx: 0.12 };
      svg(this.picture, "rect", { class: "cell", ...square });
      return svg(this.picture, "rect", { class: "heat", ...square, "fill-opacity": 0 });
    });
  }

  middle(cell) { return [(cell % this.size) + 0.5, Math.floor(cell / this.size) + 0.5]; }

  agent() { return svg(this.picture, "path", { class: "agent", d: ARROW }); }

  move(arrow, state) {
    const [x, y] = this.middle(Math.floor(state / 4));
    arrow.setAttribute("transform", `translate(${x} ${y}) rotate(${TURNS[state % 4]})`);
  }
}

const place = (cell, size) => `row ${Math.floor(cell / size) + 1}, column ${(cell % size) + 1}`;

// The agent itself, with its trail.
class TruthGrid {
  constructor(parent, size) {
    const box = html(parent, "figure", { class: "card walk" });
    html(box, "h3", {}, "The truth");
    this.grid = new Grid(box, size, "where the agent is");
    this.trail = svg(this.grid.picture, "g");
    this.arrow = this.grid.agent();
    this.says = html(box, "p", { class: "says" });
  }

  show(history, state) {
    const steps = history.slice(-TRAIL);
    this.trail.replaceChildren();
    steps.forEach(({ from, to }, i) => {
      const [x1, y1] = this.grid.middle(Math.floor(from / 4)), [x2, y2] = this.grid.middle(Math.floor(to / 4));
      svg(this.trail, "line", { class: "trail", x1, y1, x2, y2, opacity: ((i + 1) / steps.length).toFixed(2) });
    });
    this.grid.move(this.arrow, state);
    this.says.textContent = `In ${place(Math.floor(state / 4), this.grid.size)}, facing ${COMPASS[state % 4]}.`;
  }
}

// What a model believes, as heat over the cells.
class BeliefGrid {
  constructor(parent, model, spec) {
    this.grid = new Grid(parent, spec.grid, `where ${model.name} believes the agent to be`);
    this.said = svg(this.grid.picture, "rect", { class: "said", width: 0.92, height: 0.92, rx: 0.12 });
    this.arrow = this.grid.agent();
  }

  show(believed, answer, truth, state) {
    this.grid.cells.forEach((rect, i) => rect.setAttribute("fill-opacity", Math.sqrt(believed[i]).toFixed(3)));
    const [x, y] = this.grid.middle(answer);
    this.said.setAttribute("x", x - 0.46);
    this.said.setAttribute("y", y - 0.46);
    this.grid.move(this.arrow, state);
  }
}

// What a model believes, as bars over the labels.
class BeliefBars {
  constructor(parent, model, spec) {
    this.labels = spec.labels;
    this.box = html(parent, "div", { class: "belief", role: "group", "aria-label": `what ${model.name} believes` });
  }

  show(believed, answer, truth) {
    const all = this.labels.map((_, i) => i), few = all.length <= MANY;
    const shown = few ? all : likeliest(believed, 8);
    if (!few && truth !== null && !shown.includes(truth)) shown.push(truth);
    this.box.replaceChildren();
    bars(this.box, shown.map((label) => [`${this.labels[label]}${label === truth ? " ✓" : ""}`, believed[label], label === truth]));
  }
}

class Mind {
  constructor(parent, model, spec) {
    Object.assign(this, { model, spec });
    const box = html(parent, "figure", { class: "card walk", style: color(model.color) });
    this.tally = html(heading(box, model), "span", { class: "tally" });
    this.belief = new (spec.kind === "grid" ? BeliefGrid : BeliefBars)(box, model, spec);
    this.says = html(box, "p", { class: "says" });
  }

  begin(fresh) {
    if (fresh) this.model.engine.reset();
    this.right = this.asked = 0;
    this.trust = [];
  }

  // Reads a symbol; truth is the label that would be right, null where none is known or asked.
  read(symbol, truth, scored) {
    const { logits, attention } = this.model.engine.step(symbol, true);
    this.attention = attention;
    this.believed = softmax(logits);
    this.answer = likeliest(this.believed, 1)[0];
    this.known = truth;
    if (scored && truth !== null) {
      this.asked += 1;
      this.right += this.answer === truth ? 1 : 0;
    }
    if (scored) this.trust.push(truth === null ? null : this.believed[truth]);
  }

  label(label) { return this.spec.kind === "grid" ? place(label, this.spec.grid) : this.spec.labels[label]; }

  show(state) {
    this.belief.show(this.believed, this.answer, this.known, state);
    this.says.replaceChildren();
    if (this.known !== null) {
      html(this.says, "b", {}, this.answer === this.known ? "✓ right" : "✗ wrong");
      this.says.append(": ");
    }
    this.says.append(`${percent(this.believed[this.answer])} sure of ${this.label(this.answer)}.`);
    html(this.says, "br");
    this.says.append(this.score());
    this.tally.textContent = this.asked ? `${((100 * this.right) / this.asked).toFixed(0)}%` : "";
  }

  // Before the first symbol.
  wait() {
    this.believed = new Float64Array(this.spec.labels.length);
    this.belief.show(this.believed, 0, null);
    this.says.textContent = "Waiting for the first symbol.";
    this.tally.textContent = "";
  }

  score() {
    if (this.asked) return `Right so far: ${this.right} of ${this.asked} (${((100 * this.right) / this.asked).toFixed(0)}%)`;
    return this.spec.machine || this.spec.sample ? "Nothing scored yet" : "";
  }

  verdict() {
    const sure = `${percent(this.believed[this.answer])} sure of ${this.label(this.answer)}`;
    return `${this.model.name}: ${this.known === null ? "" : this.answer === this.known ? "right, " : "wrong, "}${sure}.`;
  }
}

// A row of one mark a step: full where the model gave the truth all its trust, empty where it gave none.
class Strip {
  constructor(parent, mind) {
    this.mind = mind;
    const box = html(parent, "div", { class: "strip", style: color(mind.model.color) });
    const name = html(box, "span");
    html(name, "span", { class: "swatch" });
    name.append(mind.model.name);
    this.picture = svg(box, "svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
  }

  show() {
    const { trust } = this.mind, shown = trust.slice(-STRIP);
    this.picture.setAttribute("viewBox", `0 0 ${Math.max(PLAYED, shown.length)} 1`);
    this.picture.replaceChildren();
    shown.forEach((part, x) => {
      if (part !== null) svg(this.picture, "rect", { class: "heat", x, y: 0, width: 1, height: 1, "fill-opacity": part.toFixed(3) });
    });
  }
}

class TrackPage {
  constructor(root, models, spec) {
    Object.assign(this, { spec, truth: new Truth(spec), timer: null });
    this.controls(root);
    const grids = html(root, "div", { class: "walks" });
    if (spec.kind === "grid") this.agent = new TruthGrid(grids, spec.grid);
    this.minds = models.map((model) => new Mind(grids, model, spec));
    if (spec.kind === "grid") this.key(root);
    if (spec.machine || spec.sample) {
      const strips = html(root, "div", { class: "card strips" });
      html(strips, "h3", {}, "Probability given to the truth, step by step");
      this.strips = this.minds.map((mind) => new Strip(strips, mind));
      html(strips, "p", { class: "caption" }, "Full color: certain of the truth; empty: gave it no chance.");
    } else this.strips = [];
    this.looks(root);
    addEventListener("keydown", (event) => this.pressed(event));
    this.begin(true);
  }

  controls(root) {
    const { spec } = this, bar = html(root, "div", { class: spec.symbols.length > MANY ? "controls drive many" : "controls drive" });
    const keys = html(bar, "div", { class: "keys", role: "group", "aria-label": spec.kind === "grid" ? "actions" : "symbols" });
    if (spec.kind === "grid") {
      for (const [symbol, words, key] of [[1, "↺ left", "ArrowLeft"], [0, "↑ forward", "ArrowUp"], [2, "↻ right", "ArrowRight"]]) {
        button(keys, words, () => this.own(symbol), { "aria-keyshortcuts": key, "data-symbol": symbol });
      }
    } else {
      spec.symbols.forEach((name, symbol) => {
        const shortcut = symbol < 9 ? { "aria-keyshortcuts": String(symbol + 1) } : {};
        button(keys, name, () => this.own(symbol), { "data-symbol": symbol, ...shortcut });
      });
    }
    const options = html(bar, "div", { class: "options" });
    const what = spec.kind === "grid" ? `Play ${PLAYED} random actions` : spec.machine ? `Play ${PLAYED} random symbols` : `Play ${PLAYED} of the test split`;
    this.player = spec.machine || spec.sample ? button(options, what, () => (this.timer ? this.stop() : this.play()), { class: "play", "data-words": what }) : null;
    button(options, spec.kind === "grid" ? "Reset" : "Begin anew", () => { this.stop(); this.begin(spec.kind !== "grid" || spec.fresh); });
    this.words = html(bar, "p", { class: "happened" });
    const shortcuts = spec.kind === "grid" ? "Arrow keys drive" : spec.symbols.length < 10 ? "Keys 1, 2, … press a symbol" : "Tab and Enter press a symbol";
    html(bar, "p", { class: "hint" }, `${shortcuts}${this.player ? ", P plays and pauses" : ""}, R begins anew.`);
  }

  key(root) {
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

  // What each model looked at when it read the last symbol, drawn while it is open.
  looks(root) {
    this.inside = html(root, "details", { class: "look" });
    html(this.inside, "summary", {}, "Look inside: what each model attends to, and what its memory is made of");
    const boxes = html(this.inside, "div", { class: "inside" });
    this.boxes = this.minds.map(({ model }) => {
      const box = html(boxes, "div", { class: "card", style: color(model.color) });
      heading(box, model);
      const moving = html(box, "div");
      memoryBars(box, model);
      return moving;
    });
    this.inside.addEventListener("toggle", () => this.look());
  }

  look() {
    if (!this.inside.open || !this.read.length) return;
    this.minds.forEach((mind, i) => {
      this.boxes[i].replaceChildren();
      if (!mind.attention.length) return html(this.boxes[i], "p", { class: "note" }, `${mind.model.name} attends to nothing: all it knows is in its state.`);
      const tokenAt = (distance) => `‹${this.spec.symbols[this.read[this.read.length - 1 - distance]] ?? "before"}›`;
      return headRows(this.boxes[i], layerNames(mind.model, mind.attention.length), mind.attention, tokenAt);
    });
  }

  // A new sequence, from an empty memory or on over the old one, as the task has it.
  begin(fresh) {
    const { opening } = this.spec;
    this.truth.begin();
    this.history = [];
    this.read = fresh ? [] : this.read;
    this.place = null; // in the sample
    this.minds.forEach((mind) => mind.begin(fresh));
    if (opening === undefined) {
      this.words.textContent = "Nothing read yet: press a symbol.";
      this.minds.forEach((mind) => mind.wait());
      this.strips.forEach((strip) => strip.show());
      return;
    }
    const label = this.truth.machine ? this.truth.machine.label[0] : null;
    this.read.push(opening);
    this.minds.forEach((mind) => mind.read(opening, label, false));
    this.show("reset: the agent is put into the north-west corner, facing east");
  }

  // A symbol of the user's own: a sample does not go on after it.
  own(symbol) {
    this.place = null;
    this.press(symbol);
  }

  press(symbol, given = null) {
    const from = this.truth.state;
    const label = this.truth.step(symbol, given), to = this.truth.state;
    this.history.push({ from, to });
    this.read.push(symbol);
    this.minds.forEach((mind) => mind.read(symbol, label, symbol !== this.spec.opening));
    this.show(this.happened(symbol, from, to, label));
  }

  happened(symbol, from, to, label) {
    const { spec } = this, name = spec.symbols[symbol];
    if (spec.kind !== "grid") {
      const truth = label !== null ? `; the truth is ${spec.labels[label]}` : this.place !== null ? "; nothing is asked here" : "";
      return `Read ${this.read.length}: ‹${name}›${truth}`;
    }
    const heading = COMPASS[to % 4];
    if (symbol !== 0) return `${name}: it turns and now faces ${heading}`;
    return from === to ? `forward: the edge in the ${heading} holds it back` : `forward: one cell to the ${heading}`;
  }

  show(words) {
    this.words.replaceChildren();
    if (this.spec.kind === "grid") html(this.words, "b", {}, `Action ${this.history.length}`);
    this.words.append(words);
    this.agent?.show(this.history, this.truth.state);
    this.minds.forEach((mind) => mind.show(this.truth.state));
    this.strips.forEach((strip) => strip.show());
    this.look();
    if (!this.timer) say(`${words}. ${this.minds.map((mind) => mind.verdict()).join(" ")}`);
  }

  play() {
    let left = PLAYED;
    this.player.textContent = "❚❚ Pause";
    const pace = matchMedia("(prefers-reduced-motion: reduce)").matches ? 400 : 90;
    this.timer = setInterval(() => {
      this.next();
      if (--left === 0) this.stop();
    }, pace);
  }

  // A random symbol, or the next one of the sample.
  next() {
    const { sample, symbols, opening } = this.spec;
    if (!sample) return this.press(Math.floor(Math.random() * (opening === undefined ? symbols.length : opening)));
    if (this.place === null) {
      this.begin(true);
      this.place = 0;
    }
    const at = this.place % sample.tokens.length;
    if (this.place && (sample.start[at] || at === 0)) {
      // The score goes on over the sequences of a sample.
      this.minds.forEach((mind) => mind.model.engine.reset());
      this.read = [];
    }
    this.press(sample.tokens[at], sample.labels[at]);
    this.place += 1;
  }

  stop() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    this.player.textContent = this.player.dataset.words;
    say(this.minds.map((mind) => `${mind.model.name}. ${mind.score()}.`).join(" "));
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const { spec } = this, key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const arrows = { ArrowUp: 0, ArrowLeft: 1, ArrowRight: 2 };
    let symbol = null;
    if (spec.kind === "grid" && key in arrows) symbol = arrows[key];
    if (spec.kind !== "grid" && key >= "1" && key <= "9" && Number(key) <= spec.symbols.length) symbol = Number(key) - 1;
    if (symbol !== null) this.own(symbol);
    else if (key === "p" && this.player) this.player.click();
    else if (key === "r") { this.stop(); this.begin(spec.kind !== "grid" || spec.fresh); }
    else return;
    event.preventDefault();
  }
}
