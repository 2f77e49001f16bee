// State tracking: press a token and compare the predictions of the models with the label, where it is known.
const PLAY_STEPS = 50;
const STRIP_STEPS = 200;
const MAX_BARS = 12; // labels up to which all have a bar; of more, only the most probable ones
const TOP_BARS = 8;
const HISTORY_ROWS = 200;
const LONG_LABEL = 10; // characters from which the bar is below its label where space is narrow

// The true label after each token, from the machine of the task or from an example of the test split.
class LabelSource {
  constructor({ machine }) {
    this.machine = machine;
    this.reset();
  }

  reset() { this.state = this.machine ? 0 : null; }

  // `label` is that of the example; null if there is no machine and the token is not from the example.
  step(token, label = null) {
    if (!this.machine) return label;
    this.state = this.machine.next[this.state][token];
    return this.machine.label[this.state];
  }
}

// The probabilities of the labels as bars.
class PredictionBars {
  constructor(parent, model, task) {
    this.labels = task.labels;
    this.box = html(parent, "div", { class: "prediction", role: "group", "aria-label": `${model.name}: predictions` });
    this.className = this.labels.some((label) => label.length > LONG_LABEL) ? "long" : "";
  }

  clear() { this.box.replaceChildren(); }

  show(probabilities, answer, label) {
    const all = this.labels.map((_, i) => i), few = all.length <= MAX_BARS;
    const shown = few ? all : topIndices(probabilities, TOP_BARS);
    if (!few && label !== null && !shown.includes(label)) shown.push(label);
    this.clear();
    bars(this.box, shown.map((i) => [`${this.labels[i]}${i === label ? " ✓" : ""}`, probabilities[i], i === label]), this.className);
  }
}

class ModelCard {
  constructor(parent, model, task) {
    Object.assign(this, { model, task });
    const known = task.machine || task.example; // otherwise nothing is scored
    const box = html(parent, "figure", { class: known ? "card walk" : "card walk unscored", style: color(model.color) });
    this.accuracy = html(heading(box, model.name), "span", { class: "accuracy" });
    this.prediction = task.type === "grid" ? new PredictionGrid(box, task.grid, model.name) : new PredictionBars(box, model, task);
    this.status = html(box, "p", { class: "status" });
  }

  restart(resetMemory) {
    if (resetMemory) this.model.engine.reset();
    this.correct = this.scored = 0;
    this.labelProbabilities = [];
    this.answers = []; // label and probability after each token
  }

  // Forget the past; the score continues.
  startSequence() {
    this.model.engine.reset();
    this.answers = [];
  }

  // `label` is null where it is unknown or not scored.
  read(token, label, scored) {
    const { logits, attention } = this.model.engine.step(token, true);
    this.attention = attention;
    this.probabilities = softmax(logits);
    this.answer = topIndices(this.probabilities, 1)[0];
    this.answers.push([this.answer, this.probabilities[this.answer]]);
    this.label = label;
    if (scored && label !== null) {
      this.scored += 1;
      this.correct += this.answer === label ? 1 : 0;
    }
    if (scored) this.labelProbabilities.push(label === null ? null : this.probabilities[label]);
  }

  labelName(label) { return this.task.type === "grid" ? cellName(label, this.task.grid) : this.task.labels[label]; }

  show(state) {
    if (this.task.type === "grid") this.prediction.show(this.probabilities, this.answer, Math.floor(state / 4), state % 4);
    else this.prediction.show(this.probabilities, this.answer, this.label);
    this.status.replaceChildren();
    if (this.label !== null) {
      html(this.status, "b", {}, this.answer === this.label ? "✓ correct" : "✗ wrong");
      this.status.append(": ");
    }
    this.status.append(`${percent(this.probabilities[this.answer])} for ${this.labelName(this.answer)}.`);
    if (this.score()) this.status.append(document.createElement("br"), this.score());
    this.accuracy.textContent = this.scored ? percent(this.correct / this.scored) : "";
  }

  // Before the first token.
  showEmpty() {
    this.prediction.clear();
    this.status.textContent = "Nothing read yet.";
    this.accuracy.textContent = "";
  }

  score() {
    if (this.scored) return `Correct so far: ${this.correct} of ${this.scored} (${percent(this.correct / this.scored)})`;
    return this.task.machine || this.task.example ? "Nothing scored yet" : "";
  }

  spokenPrediction() {
    const verdict = this.label === null ? "" : this.answer === this.label ? "correct, " : "wrong, ";
    return `${this.model.name}: ${verdict}${percent(this.probabilities[this.answer])} for ${this.labelName(this.answer)}.`;
  }
}

// One mark per step; its opacity is the probability of the true label.
class LabelStrip {
  constructor(parent, card) {
    this.card = card;
    const box = html(parent, "div", { class: "strip", style: color(card.model.color) });
    const name = html(box, "span");
    html(name, "span", { class: "swatch" });
    name.append(card.model.name);
    this.image = svg(box, "svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
  }

  show() {
    const recent = this.card.labelProbabilities.slice(-STRIP_STEPS);
    this.image.setAttribute("viewBox", `0 0 ${Math.max(PLAY_STEPS, recent.length)} 1`);
    this.image.replaceChildren();
    recent.forEach((p, x) => {
      if (p !== null) svg(this.image, "rect", { class: "heat", x, y: 0, width: 1, height: 1, "fill-opacity": p.toFixed(3) });
    });
  }
}

// The tokens read so far, newest first, with the label that each model predicted after it.
class History {
  constructor(parent, cards, task, item) {
    Object.assign(this, { cards, task });
    const box = html(parent, "div", { class: "card history" });
    html(box, "h3", {}, `${capitalized(item)}s read`);
    this.note = html(box, "p", { class: "note" });
    const scroll = html(box, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${item}s read` });
    this.table = html(scroll, "table");
    const names = html(html(this.table, "thead"), "tr");
    const columns = cards.length > 1 ? cards.map((card) => card.model.name) : ["predicted label"];
    for (const name of ["", item, ...columns]) html(names, "th", { scope: "col" }, name);
    this.rows = html(this.table, "tbody");
  }

  show(tokens) {
    this.rows.replaceChildren();
    this.table.hidden = !tokens.length;
    const hidden = Math.max(0, tokens.length - HISTORY_ROWS);
    this.note.textContent = !tokens.length ? "Nothing yet." : hidden ? `The last ${HISTORY_ROWS} of ${tokens.length}.` : "";
    for (let i = tokens.length - 1; i >= hidden; i--) {
      const row = html(this.rows, "tr");
      html(row, "td", { class: "number" }, String(i + 1));
      appendName(html(row, "th", { scope: "row" }), this.task.tokens[tokens[i]]);
      for (const card of this.cards) {
        const [answer, probability] = card.answers[i];
        const cell = appendName(html(row, "td"), card.labelName(answer));
        cell.append(" ");
        html(cell, "span", { class: "share" }, `(${percent(probability)})`);
      }
    }
  }
}

const capitalized = (text) => text[0].toUpperCase() + text.slice(1);

class TrackingPage {
  constructor(root, models, task) {
    Object.assign(this, { task, labels: new LabelSource(task), timer: null, isGrid: task.type === "grid" });
    this.item = task.item ?? "token";
    this.addControls(root);
    const cards = html(root, "div", { class: "walks" });
    if (this.isGrid) this.truth = new TruthCard(cards, task.grid);
    this.cards = models.map((model) => new ModelCard(cards, model, task));
    if (this.isGrid) gridLegend(root);
    this.strips = [];
    if (task.machine || task.example) {
      const strips = html(root, "div", { class: "card strips" });
      html(strips, "h3", {}, "Probability of the true label, step by step");
      this.strips = this.cards.map((card) => new LabelStrip(strips, card));
      html(strips, "p", { class: "caption" }, "Full color: probability 1; empty: probability 0.");
    }
    this.history = this.isGrid ? null : new History(root, this.cards, task, this.item);
    this.addAttention(root);
    addEventListener("keydown", (event) => this.onKey(event));
    this.restart(true);
  }

  addControls(root) {
    const { task, isGrid } = this, bar = html(root, "div", { class: task.tokens.length > MAX_BARS ? "controls drive many" : "controls drive" });
    const keys = html(bar, "div", { class: "keys", role: "group", "aria-label": isGrid ? "actions" : `${this.item}s` });
    if (isGrid) {
      for (const [token, text, key] of [[1, "↺ left", "ArrowLeft"], [0, "↑ forward", "ArrowUp"], [2, "↻ right", "ArrowRight"]]) {
        button(keys, text, () => this.press(token), { "aria-keyshortcuts": key, "data-token": token });
      }
    } else {
      task.tokens.forEach((name, token) => {
        const shortcut = token < 9 ? { "aria-keyshortcuts": String(token + 1) } : {};
        appendName(button(keys, "", () => this.press(token), { "data-token": token, ...shortcut }), name);
      });
    }
    const options = html(bar, "div", { class: "options" });
    const text = isGrid ? `Play ${PLAY_STEPS} random actions` : task.machine ? `Play ${PLAY_STEPS} random tokens` : `Play ${PLAY_STEPS} test tokens`;
    this.playButton = task.machine || task.example ? button(options, text, () => (this.timer ? this.stop() : this.play()), { class: "play", "data-text": text }) : null;
    this.undoButton = isGrid ? null : button(options, "Undo", () => this.undo());
    button(options, "Reset", () => this.onReset());
    if (!isGrid) this.addPasteField(bar);
    this.description = html(bar, "p", { class: "description" });
    const shortcuts = isGrid ? "Arrow keys drive" : task.tokens.length < 10 ? `Keys 1, 2, … press ${this.article}` : `Tab and Enter press ${this.article}`;
    html(bar, "p", { class: "hint" }, `${shortcuts}${this.playButton ? ", P plays and pauses" : ""}${isGrid ? "" : ", U removes the last one"}, R resets.`);
  }

  get article() { return `${/^[aeiou]/.test(this.item) ? "an" : "a"} ${this.item}`; }

  addPasteField(bar) {
    const form = html(bar, "form", { class: "paste" });
    this.pasted = html(form, "textarea", { rows: 1, "aria-label": `${this.item}s to read, separated by spaces`, placeholder: `Paste ${this.item}s` });
    html(form, "button", { type: "submit" }, `Read ${this.item}s`);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.paste();
    });
  }

  // Read all pasted tokens, or none if one is unknown.
  paste() {
    const names = this.pasted.value.split(/\s+/).filter(Boolean);
    const unknown = names.find((name) => !this.task.tokens.includes(name));
    if (unknown !== undefined) {
      this.description.textContent = `‹${unknown}› was not in the training data; nothing was read.`;
      announce(this.description.textContent);
    } else if (names.length) {
      this.examplePosition = null;
      this.readAll(names.map((name) => this.task.tokens.indexOf(name)));
      this.pasted.value = "";
    }
  }

  // Remove the last token: the others are read again from the start.
  undo() {
    this.stop();
    const tokens = this.tokens.slice(0, -1);
    this.restart(true);
    if (tokens.length) this.readAll(tokens);
  }

  readAll(tokens) {
    tokens.slice(0, -1).forEach((token) => this.advance(token));
    this.read(tokens[tokens.length - 1]);
  }

  // The attention of each model at the last token, updated while it is open.
  addAttention(root) {
    this.details = html(root, "details", { class: "attention" });
    html(this.details, "summary", {}, "Attention and memory composition" + (this.cards.length > 1 ? " of each model" : ""));
    const columns = html(this.details, "div", { class: "columns" });
    this.attentionBoxes = this.cards.map(({ model }) => {
      const box = html(columns, "div", { class: "card", style: color(model.color) });
      heading(box, model.name);
      const attention = html(box, "div");
      memoryBars(box, model);
      return attention;
    });
    this.details.addEventListener("toggle", () => this.showAttention());
  }

  showAttention() {
    if (!this.details.open || !this.tokens.length) return;
    this.cards.forEach(({ model, attention }, i) => {
      this.attentionBoxes[i].replaceChildren();
      if (!attention.length) return html(this.attentionBoxes[i], "p", { class: "note" }, `${model.name} has no attention.`);
      const tokenAt = (distance) => `‹${this.task.tokens[this.tokens[this.tokens.length - 1 - distance]] ?? "before"}›`;
      return attentionPlots(this.attentionBoxes[i], layerNames(model, attention.length), attention, tokenAt);
    });
  }

  // Start a new sequence. The memory of the models is kept if it was in training.
  restart(resetMemory) {
    const { first_token: firstToken } = this.task;
    this.labels.reset();
    this.steps = 0;
    this.path = [0]; // cells of the agent
    this.tokens = resetMemory ? [] : this.tokens;
    this.examplePosition = null;
    this.cards.forEach((card) => card.restart(resetMemory));
    if (firstToken === undefined) {
      this.description.textContent = `Press ${this.article}.`;
      this.cards.forEach((card) => card.showEmpty());
      this.strips.forEach((strip) => strip.show());
      this.showHistory();
      return;
    }
    this.tokens.push(firstToken);
    this.cards.forEach((card) => card.read(firstToken, this.labels.machine.label[0], false));
    this.show(describeAction("reset"));
  }

  onReset() {
    this.stop();
    this.restart(!this.isGrid || this.task.reset_memory);
  }

  // A token from the user ends the example.
  press(token) {
    this.examplePosition = null;
    this.read(token);
  }

  // Let the models read a token. Return its true label, null if it is unknown.
  advance(token, exampleLabel = null) {
    const label = this.labels.step(token, exampleLabel);
    this.steps += 1;
    this.tokens.push(token);
    this.cards.forEach((card) => card.read(token, label, token !== this.task.first_token));
    return label;
  }

  read(token, exampleLabel = null) {
    const before = this.labels.state, label = this.advance(token, exampleLabel);
    if (this.isGrid) {
      this.path.push(label);
      this.show(describeAction(this.task.tokens[token], this.labels.state % 4, this.labels.state !== before));
    } else {
      const text = label !== null ? `; the label is ${this.task.labels[label]}` : this.examplePosition !== null ? "; not scored" : "";
      this.show(`${capitalized(this.item)} ${this.tokens.length}: ‹${this.task.tokens[token]}›${text}`);
    }
  }

  show(text) {
    const { state } = this.labels;
    this.description.replaceChildren();
    if (this.isGrid) html(this.description, "b", {}, `Action ${this.steps}`);
    this.description.append(text);
    this.truth?.show(this.path, state % 4);
    this.cards.forEach((card) => card.show(state));
    this.strips.forEach((strip) => strip.show());
    this.showHistory();
    this.showAttention();
    if (!this.timer) announce(`${text}. ${this.cards.map((card) => card.spokenPrediction()).join(" ")}`);
  }

  showHistory() {
    this.history?.show(this.tokens);
    if (this.undoButton) this.undoButton.disabled = !this.tokens.length;
  }

  play() {
    let remaining = PLAY_STEPS;
    this.playButton.textContent = "❚❚ Pause";
    const pause = matchMedia("(prefers-reduced-motion: reduce)").matches ? 400 : 90;
    this.timer = setInterval(() => {
      this.playStep();
      if (--remaining === 0) this.stop();
    }, pause);
  }

  // Read a random token, or the next one of the example.
  playStep() {
    const { example, tokens, first_token: firstToken } = this.task;
    if (!example) return this.read(Math.floor(Math.random() * (firstToken === undefined ? tokens.length : firstToken)));
    if (this.examplePosition === null) {
      this.restart(true);
      this.examplePosition = 0;
    }
    const i = this.examplePosition % example.tokens.length;
    if (this.examplePosition && (example.start[i] || i === 0)) {
      // The score continues over the sequences of an example.
      this.cards.forEach((card) => card.startSequence());
      this.tokens = [];
    }
    this.read(example.tokens[i], example.labels[i]);
    this.examplePosition += 1;
  }

  stop() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    this.playButton.textContent = this.playButton.dataset.text;
    announce(this.cards.map((card) => `${card.model.name}. ${card.score()}.`).join(" "));
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const arrows = { ArrowUp: 0, ArrowLeft: 1, ArrowRight: 2 };
    let token = null;
    if (this.isGrid && key in arrows) token = arrows[key];
    if (!this.isGrid && key >= "1" && key <= "9" && Number(key) <= this.task.tokens.length) token = Number(key) - 1;
    if (token !== null) this.press(token);
    else if (key === "p" && this.playButton) this.playButton.click();
    else if (key === "u" && this.undoButton) this.undoButton.click();
    else if (key === "r") this.onReset();
    else return;
    event.preventDefault();
  }
}
