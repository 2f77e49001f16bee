// Text: type a prompt, generate, and see what each token attended to.
const MAX_SHOWN = 2000; // tokens on the page; older ones are removed, independently of the model's memory
const MAX_WEIGHTS = 16e6; // attention weights that are stored with them
const TOP_TOKENS = 8; // most probable next tokens that are shown

class TextPage {
  constructor(root, models, task) {
    Object.assign(this, { models, vocabulary: new Vocabulary(task.vocabulary), timer: null, layer: -1 });
    this.addControls(root);
    const columns = html(root, "div", { class: "text-page" });
    const box = html(columns, "div", { class: "card" });
    html(box, "h3", { id: "text-title" }, "Prompt and generated text");
    this.text = html(box, "div", { class: "tokens", role: "listbox", "aria-labelledby": "text-title", "aria-orientation": "horizontal" });
    html(box, "p", { class: "caption" }, "Point at a token, or use the arrow keys: the tokens that it attended to are colored. The panel shows the attention of each head. The prompt is gray.");
    this.side = html(columns, "div", { class: "card side" });
    this.addListeners();
    this.chooseModel(0);
  }

  addControls(root) {
    const form = html(root, "div", { class: "controls typing" });
    html(form, "label", { for: "prompt" }, "Prompt");
    this.prompt = html(form, "textarea", { id: "prompt", rows: 3, spellcheck: "false", autocomplete: "off" });
    const options = html(form, "div", { class: "options" });
    this.playButton = button(options, "▶ Generate", () => (this.timer ? this.stop() : this.play()), { class: "play", "aria-keyshortcuts": "Control+Enter" });
    button(options, "One token", () => { this.stop(); if (this.generate()) this.select(this.tokens.length - 1); });
    button(options, "Clear", () => { this.stop(); this.reset(); this.readPrompt(); }, { title: "Remove the generated text" });
    const label = html(options, "label", { class: "temperature" }, "temperature ");
    this.temperature = html(label, "input", { type: "range", min: 0, max: 1.5, step: 0.05, value: 0.7 });
    const value = html(label, "output", {}, "0.70");
    this.temperature.addEventListener("input", () => { value.textContent = Number(this.temperature.value).toFixed(2); });
    if (this.models.length > 1) {
      const menu = html(options, "select", { "aria-label": "model" });
      this.models.forEach((model, i) => html(menu, "option", { value: i }, model.name));
      menu.addEventListener("change", () => this.chooseModel(Number(menu.value)));
    }
    this.status = html(form, "p", { class: "description" });
    html(form, "p", { class: "hint" }, "Ctrl+Enter generates, Escape stops.");
  }

  addListeners() {
    this.prompt.addEventListener("input", () => { this.stop(); this.readPrompt(); });
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.playButton.click(); }
    });
    const index = (event) => event.target.dataset.token && Number(event.target.dataset.token) - this.removed;
    this.text.addEventListener("pointerover", (event) => { if (!this.timer && index(event) !== undefined) this.select(index(event)); });
    this.text.addEventListener("focusin", (event) => {
      if (index(event) === undefined) return;
      this.select(index(event));
      announce(this.spokenAttention());
    });
    this.text.addEventListener("keydown", (event) => {
      const next = { ArrowLeft: this.selected - 1, ArrowRight: this.selected + 1, Home: 0, End: this.tokens.length - 1 }[event.key];
      if (next === undefined || !this.tokens[next]) return;
      event.preventDefault();
      this.tokens[next].element.focus();
    });
  }

  chooseModel(i) {
    this.stop();
    this.model = this.models[i];
    this.layer = -1;
    document.getElementById("page").setAttribute("style", color(this.model.color));
    this.reset();
    this.readPrompt();
  }

  // Read the prompt. If it only became longer, only the new tokens are read.
  readPrompt() {
    let ids = [];
    this.error = "";
    try {
      ids = this.vocabulary.encode(this.prompt.value);
    } catch (error) {
      this.error = error.message;
    }
    const extended = !this.generated && this.promptIds.length <= ids.length && this.promptIds.every((id, i) => id === ids[i]);
    if (!extended) this.reset();
    ids.slice(this.promptIds.length).forEach((id) => this.read(id, false));
    this.promptIds = ids;
    this.setStatus(this.error || (ids.length ? `${ids.length} tokens read.` : "Type a prompt."));
    if (ids.length) this.select(this.tokens.length - 1);
    else this.side.replaceChildren();
  }

  reset() {
    this.model.engine.reset();
    this.decode = this.vocabulary.decoder();
    Object.assign(this, { promptIds: [], tokens: [], removed: 0, selected: -1, generated: 0, weights: 0 });
    this.text.replaceChildren();
  }

  setStatus(text) {
    this.status.textContent = text;
    announce(text);
  }

  // Let the model read a token and add it to the page.
  read(id, generated) {
    const { logits, attention } = this.model.engine.step(id, true);
    const text = this.decode(id), name = this.vocabulary.name(id);
    const element = html(this.text, "span", {
      role: "option", tabindex: -1, "aria-label": name, "aria-selected": "false", "data-token": this.removed + this.tokens.length,
      class: [generated ? "generated" : "", text.endsWith("\n") ? "line-end" : "", text ? "" : "partial"].join(" ").trim(),
    }, text || "·");
    const probabilities = softmax(logits);
    const predictions = topIndices(probabilities, TOP_TOKENS).map((next) => [next, probabilities[next]]);
    const weights = attention.reduce((sum, layer) => sum + layer.heads * layer.weights[0].length, 0);
    this.tokens.push({ id, name, element, predictions, attention, weights, generated });
    this.weights += weights;
    this.logits = logits;
    while (this.tokens.length > MAX_SHOWN || (this.weights > MAX_WEIGHTS && this.tokens.length > 1)) this.removeOldest();
  }

  removeOldest() {
    const { element, weights } = this.tokens.shift();
    element.remove();
    this.weights -= weights;
    this.removed += 1;
    this.selected -= 1;
  }

  // Sample the next token and read it. Returns false without a valid prompt.
  generate() {
    if (!this.tokens.length || this.error) {
      this.setStatus(this.error || "Type a prompt.");
      this.prompt.focus();
      return false;
    }
    this.read(this.sample(this.logits), true);
    this.status.textContent = `${++this.generated} tokens generated.`;
    return true;
  }

  sample(logits) {
    const temperature = Number(this.temperature.value);
    if (temperature === 0) return topIndices(logits, 1)[0];
    const probabilities = softmax(logits.map((logit) => logit / temperature));
    let remaining = Math.random();
    const token = probabilities.findIndex((p) => (remaining -= p) < 0);
    return token < 0 ? topIndices(probabilities, 1)[0] : token;
  }

  play() {
    if (!this.generate()) return;
    this.playButton.textContent = "❚❚ Stop";
    this.timer = setInterval(() => {
      this.generate();
      this.select(this.tokens.length - 1);
    }, 40);
  }

  stop() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    this.playButton.textContent = "▶ Generate";
    const text = this.tokens.filter((token) => token.generated).map((token) => token.element.textContent).join("");
    announce(`Stopped. Generated text: ${text.slice(-300)}`);
  }

  // Color what a token attended to, and show its predictions and attention in the side panel.
  select(i) {
    const token = this.tokens[i];
    if (!token) return;
    const previous = this.tokens[this.selected];
    if (previous) { previous.element.tabIndex = -1; previous.element.setAttribute("aria-selected", "false"); }
    this.selected = i;
    token.element.tabIndex = 0;
    token.element.setAttribute("aria-selected", "true");
    if (this.timer) this.text.scrollTop = this.text.scrollHeight;
    this.colorTokens();
    this.showSide();
  }

  // The prediction and the attention at the selected token, for screen readers.
  spokenAttention() {
    const { name, predictions, attention } = this.tokens[this.selected];
    const layers = layerNames(this.model, attention.length).map((layer, i) => {
      const { weights, first } = attention[i], sums = weights[0].map((_, j) => weights.reduce((sum, row) => sum + row[j], 0));
      const distance = topIndices(sums, 1)[0] + first, token = this.tokens[this.selected - distance];
      return token ? `${layer} attends most to ${token.name}, distance ${distance}` : `${layer} has nothing to attend to`;
    });
    return `${name}: predicts ${this.vocabulary.name(predictions[0][0])}, ${percent(predictions[0][1])}. ${layers.join("; ")}`;
  }

  // By the mean attention over the heads of the chosen layer, or of all layers.
  colorTokens() {
    for (const token of this.colored ?? []) token.element.classList.remove("attended");
    const { attention } = this.tokens[this.selected];
    const layers = this.layer < 0 ? attention : [attention[this.layer]];
    const means = [];
    for (const layer of layers) for (const weights of layer.weights) weights.forEach((weight, j) => {
      const distance = j + layer.first;
      means[distance] = (means[distance] ?? 0) + weight / (layers.length * layer.heads);
    });
    this.colored = [];
    means.forEach((mean, distance) => {
      const token = this.tokens[this.selected - distance];
      if (!token || mean < 0.002) return;
      token.element.classList.add("attended");
      token.element.style.setProperty("--weight", `${(55 * Math.sqrt(mean)).toFixed(0)}%`);
      this.colored.push(token);
    });
  }

  showSide() {
    const token = this.tokens[this.selected], { side, model } = this;
    side.replaceChildren();
    html(side, "h3", {}, `At ‹${token.name}›`);
    html(side, "h4", {}, "Predicted next token");
    const next = this.tokens[this.selected + 1]?.id;
    bars(side, token.predictions.map(([id, p]) => [this.vocabulary.name(id), p, id === next]), "next-tokens");
    if (!token.attention.length) html(side, "p", { class: "note" }, `${model.name} has no attention.`);
    else this.showAttention(side, token);
    memoryBars(side, model);
  }

  showAttention(side, token) {
    const names = layerNames(this.model, token.attention.length);
    html(side, "h4", {}, "Attention");
    const choices = html(side, "div", { class: "choices", role: "group", "aria-label": "layer that colors the text" });
    ["all", ...names.map((name) => name.replace("pass ", "").replace(", layer ", "·").replace("layer ", ""))].forEach((text, i) => {
      const name = i ? names[i - 1] : "all layers";
      const choose = () => { this.layer = i - 1; this.colorTokens(); this.showSide(); this.side.querySelectorAll(".choices button")[i].focus(); };
      button(choices, text, choose, { "aria-pressed": String(this.layer === i - 1), "aria-label": name, title: name });
    });
    attentionPlots(side, names, token.attention, (distance) => `‹${this.tokens[this.selected - distance]?.name ?? "…"}›`);
  }
}
