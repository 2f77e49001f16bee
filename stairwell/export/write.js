// Text: type, see it go on, and look at what each token attended to.
const KEPT = 2000; // tokens on the page; older ones leave it, the model's memory has its own length
const NUMBERS = 16e6; // attention weights that are kept with them
const NEXT = 8; // likely tokens that are shown

class WritePage {
  constructor(root, models, spec) {
    Object.assign(this, { models, vocabulary: new Vocabulary(spec.vocabulary), timer: null, layer: -1 });
    this.form(root);
    const columns = html(root, "div", { class: "writing" });
    const paper = html(columns, "div", { class: "card paper" });
    html(paper, "h3", { id: "paper-title" }, "What it read and wrote");
    this.paper = html(paper, "div", { class: "tokens", role: "listbox", "aria-labeledby": "paper-title", "aria-orientation": "horizontal" });
    html(paper, "p", { class: "caption" }, "Point at a token, or go there with the arrow keys: the tokens that it attended to are colored, and the side says how much each head looked at. What you typed is gray, what the model wrote is not.");
    this.side = html(columns, "div", { class: "card side" });
    this.listen();
    this.choose(0);
  }

  form(root) {
    const form = html(root, "div", { class: "controls typing" });
    html(form, "label", { for: "prompt" }, "Begin with");
    this.prompt = html(form, "textarea", { id: "prompt", rows: 3, spellcheck: "false", autocomplete: "off" });
    const options = html(form, "div", { class: "options" });
    this.go = button(options, "▶ Go on", () => (this.timer ? this.stop() : this.play()), { class: "play", "aria-keyshortcuts": "Control+Enter" });
    button(options, "One token", () => { this.stop(); if (this.write()) this.pick(this.tokens.length - 1); });
    button(options, "Take back", () => { this.stop(); this.clear(); this.reread(); }, { title: "Take back what the model wrote" });
    const warm = html(options, "label", { class: "warm" }, "temperature ");
    this.temperature = html(warm, "input", { type: "range", min: 0, max: 1.5, step: 0.05, value: 0.7 });
    const shown = html(warm, "output", {}, "0.70");
    this.temperature.addEventListener("input", () => { shown.textContent = Number(this.temperature.value).toFixed(2); });
    if (this.models.length > 1) {
      const choice = html(options, "select", { "aria-label": "model" });
      this.models.forEach((model, i) => html(choice, "option", { value: i }, model.name));
      choice.addEventListener("change", () => this.choose(Number(choice.value)));
    }
    this.words = html(form, "p", { class: "happened" });
    html(form, "p", { class: "hint" }, "Ctrl+Enter goes on, Escape stops.");
  }

  listen() {
    this.prompt.addEventListener("input", () => { this.stop(); this.reread(); });
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.go.click(); }
    });
    const number = (event) => event.target.dataset.token && Number(event.target.dataset.token) - this.dropped;
    this.paper.addEventListener("pointerover", (event) => { if (!this.timer && number(event) !== undefined) this.pick(number(event)); });
    this.paper.addEventListener("focusin", (event) => {
      if (number(event) === undefined) return;
      this.pick(number(event));
      say(this.summary());
    });
    this.paper.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: this.picked - 1, ArrowRight: this.picked + 1, Home: 0, End: this.tokens.length - 1 }[event.key];
      if (to === undefined || !this.tokens[to]) return;
      event.preventDefault();
      this.tokens[to].element.focus();
    });
  }

  choose(number) {
    this.stop();
    this.model = this.models[number];
    this.layer = -1;
    document.getElementById("page").setAttribute("style", color(this.model.color));
    this.clear();
    this.reread();
  }

  // Read what was typed. Nothing is read twice if it only became longer; otherwise, or if something was written after
  // it, everything is read anew.
  reread() {
    let ids = [];
    this.error = "";
    try {
      ids = this.vocabulary.encode(this.prompt.value);
    } catch (error) {
      this.error = error.message;
    }
    const longer = !this.written && this.ids.length <= ids.length && this.ids.every((id, i) => id === ids[i]);
    if (!longer) this.clear();
    ids.slice(this.ids.length).forEach((id) => this.read(id, false));
    this.ids = ids;
    this.tell(this.error || (ids.length ? `${ids.length} tokens read.` : "Type something for the model to go on from."));
    if (ids.length) this.pick(this.tokens.length - 1);
    else this.side.replaceChildren();
  }

  clear() {
    this.model.engine.reset();
    this.spell = this.vocabulary.speller();
    Object.assign(this, { ids: [], tokens: [], dropped: 0, picked: -1, written: 0, numbers: 0 });
    this.paper.replaceChildren();
  }

  tell(words) {
    this.words.textContent = words;
    say(words);
  }

  // Let the model read a token and put it on the paper.
  read(id, written) {
    const { logits, attention } = this.model.engine.step(id, true);
    const text = this.spell(id), name = this.vocabulary.name(id);
    const element = html(this.paper, "span", {
      role: "option", tabindex: -1, "aria-label": name, "aria-selected": "false", "data-token": this.dropped + this.tokens.length,
      class: [written ? "written" : "", text.endsWith("\n") ? "ends" : "", text ? "" : "part"].join(" ").trim(),
    }, text || "·");
    const chances = softmax(logits);
    const expected = likeliest(chances, NEXT).map((next) => [next, chances[next]]);
    const numbers = attention.reduce((sum, layer) => sum + layer.heads * layer.weights[0].length, 0);
    this.tokens.push({ id, name, element, expected, attention, numbers, written });
    this.numbers += numbers;
    this.logits = logits;
    while (this.tokens.length > KEPT || (this.numbers > NUMBERS && this.tokens.length > 1)) this.drop();
  }

  // The oldest token leaves the page.
  drop() {
    const { element, numbers } = this.tokens.shift();
    element.remove();
    this.numbers -= numbers;
    this.dropped += 1;
    this.picked -= 1;
  }

  // Draw the next token and read it.
  write() {
    if (!this.tokens.length || this.error) {
      this.tell(this.error || "Type something for the model to go on from.");
      this.prompt.focus();
      return false;
    }
    this.read(this.draw(this.logits), true);
    this.words.textContent = `${++this.written} tokens written.`;
    return true;
  }

  draw(logits) {
    const temperature = Number(this.temperature.value);
    if (temperature === 0) return likeliest(logits, 1)[0];
    const chances = softmax(logits.map((logit) => logit / temperature));
    let left = Math.random();
    const drawn = chances.findIndex((chance) => (left -= chance) < 0);
    return drawn < 0 ? likeliest(chances, 1)[0] : drawn;
  }

  play() {
    if (!this.write()) return;
    this.go.textContent = "❚❚ Stop";
    this.timer = setInterval(() => {
      this.write();
      this.pick(this.tokens.length - 1);
    }, 40);
  }

  stop() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    this.go.textContent = "▶ Go on";
    const text = this.tokens.filter((token) => token.written).map((token) => token.element.textContent).join("");
    say(`Stopped. The model wrote: ${text.slice(-300)}`);
  }

  // Look at a token: color what it attended to, and say at the side what it saw and expected.
  pick(number) {
    const token = this.tokens[number];
    if (!token) return;
    const before = this.tokens[this.picked];
    if (before) { before.element.tabIndex = -1; before.element.setAttribute("aria-selected", "false"); }
    this.picked = number;
    token.element.tabIndex = 0;
    token.element.setAttribute("aria-selected", "true");
    if (this.timer) this.paper.scrollTop = this.paper.scrollHeight;
    this.shade();
    this.describe();
  }

  // What there is to see at the picked token, in one sentence.
  summary() {
    const { name, expected, attention } = this.tokens[this.picked];
    const looks = layerNames(this.model, attention.length).map((layer, i) => {
      const { weights, first } = attention[i], mean = weights[0].map((_, j) => weights.reduce((sum, row) => sum + row[j], 0));
      const distance = likeliest(mean, 1)[0] + first, seen = this.tokens[this.picked - distance];
      return seen ? `${layer} looks most at ${seen.name}, ${distance} back` : `${layer} looks at nothing`;
    });
    return `${name}: expects ${this.vocabulary.name(expected[0][0])}, ${percent(expected[0][1])}. ${looks.join("; ")}`;
  }

  // The mean over heads of the layer that is chosen, or over all layers.
  shade() {
    for (const token of this.shaded ?? []) token.element.classList.remove("seen");
    const { attention } = this.tokens[this.picked];
    const layers = this.layer < 0 ? attention : [attention[this.layer]];
    const shares = [];
    for (const layer of layers) for (const weights of layer.weights) weights.forEach((weight, j) => {
      const distance = j + layer.first;
      shares[distance] = (shares[distance] ?? 0) + weight / (layers.length * layer.heads);
    });
    this.shaded = [];
    shares.forEach((share, distance) => {
      const token = this.tokens[this.picked - distance];
      if (!token || share < 0.002) return;
      token.element.classList.add("seen");
      token.element.style.setProperty("--weight", `${(55 * Math.sqrt(share)).toFixed(0)}%`);
      this.shaded.push(token);
    });
  }

  describe() {
    const token = this.tokens[this.picked], { side, model } = this;
    side.replaceChildren();
    html(side, "h3", {}, `When it read ‹${token.name}›`);
    html(side, "h4", {}, "it expected next");
    const following = this.tokens[this.picked + 1]?.id;
    bars(side, token.expected.map(([id, chance]) => [this.vocabulary.name(id), chance, id === following]), "symbols");
    if (!token.attention.length) html(side, "p", { class: "note" }, `${model.name} attends to nothing: all it knows is in its state.`);
    else this.describeAttention(side, token);
    memoryBars(side, model);
  }

  describeAttention(side, token) {
    const names = layerNames(this.model, token.attention.length);
    html(side, "h4", {}, "it attended to");
    const choices = html(side, "div", { class: "choices", role: "group", "aria-label": "which layer colors the text" });
    ["all", ...names.map((name) => name.replace("pass ", "").replace(", layer ", "·").replace("layer ", ""))].forEach((name, i) => {
      const words = i ? names[i - 1] : "all layers";
      button(choices, name, () => { this.layer = i - 1; this.shade(); this.describe(); this.side.querySelectorAll(".choices button")[i].focus(); }, { "aria-pressed": String(this.layer === i - 1), "aria-label": words, title: words });
    });
    headRows(side, names, token.attention, (distance) => `‹${this.tokens[this.picked - distance]?.name ?? "…"}›`);
  }
}
