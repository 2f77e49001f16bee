// Translate or summarize, and see which source tokens each output token attended to.
const TOP_SOURCES = 6; // most attended source tokens that are listed
const MAX_LABELS = 48; // source tokens whose names fit above the matrix
const MAX_BEAM = 20;
const SLICE = 25; // milliseconds of computing between two updates of the page
const END = "∎"; // shown for the end token

class TranslationPage {
  constructor(root, models, task) {
    const translates = task.task === "translate", [input, output] = data.names;
    Object.assign(this, { models, task, translates, job: 0, pairs: [], selected: null, layer: -1 });
    this.names = translates
      ? { input, output, verb: "Translate", doing: "Translating", done: "translated", type: `Type text in ${input}.` }
      : { input, output, verb: "Summarize", doing: "Summarizing", done: "summarized", type: "Paste an article." };
    // The languages of input and output, for screen readers.
    this.languages = [task.source, task.target].map((code) => (translates && /^[a-z]{2}$/.test(code) ? { lang: code } : {}));
    this.addControls(root);
    const columns = html(root, "div", { class: "text-page" });
    const left = html(columns, "div"), box = html(left, "div", { class: "card" });
    html(box, "h3", { id: "text-title" }, `${input} and ${output}`);
    this.output = html(box, "div", { class: "pairs", role: "listbox", "aria-labelledby": "text-title", "aria-orientation": "horizontal" });
    html(box, "p", { class: "caption" }, "Point at a token of the output, or use the arrow keys: the tokens of the input (gray) that it attended to are colored.");
    this.matrix = html(left, "figure", { class: "card matrix" });
    this.side = html(columns, "div", { class: "card side" });
    this.addListeners();
    this.chooseModel(0);
  }

  addControls(root) {
    const { names, languages } = this, form = html(root, "div", { class: "controls typing" });
    html(form, "label", { for: "source" }, names.input);
    this.input = html(form, "textarea", { id: "source", rows: this.translates ? 3 : 8, ...languages[0], autocomplete: "off", spellcheck: "false" });
    const options = html(form, "div", { class: "options" });
    this.runButton = button(options, names.verb, () => (this.running ? this.stop("Stopped.") : this.run()), { class: "play", "aria-keyshortcuts": "Control+Enter" });
    button(options, "Clear", () => { this.input.value = ""; this.stop(""); this.show([]); this.input.focus(); });
    if (this.models.length > 1) {
      this.menu = html(options, "select", { "aria-label": "model" });
      this.models.forEach((model, i) => html(this.menu, "option", { value: i }, model.name));
      this.menu.addEventListener("change", () => this.chooseModel(Number(this.menu.value)));
    }
    const settings = html(form, "div", { class: "settings" });
    this.beam = this.number(settings, "Beam size", { min: 1, max: MAX_BEAM, step: 1, title: "1 is greedy search" });
    this.penalty = this.number(settings, "Length penalty", { min: -10, max: 10, step: 0.1, title: "Higher values prefer longer outputs" });
    this.ngrams = this.number(settings, "No-repeat n-gram size", { min: 0, max: 20, step: 1, title: "Size of n-grams that must not repeat; 0 for no constraint" });
    this.status = html(form, "p", { class: "description" });
    html(form, "p", { class: "hint" }, `${this.translates ? "Each line is translated separately. " : ""}Ctrl+Enter starts, Escape stops. A beam size of 1 is greedy search.`);
  }

  number(parent, name, attributes) {
    return html(html(parent, "label", { title: attributes.title }, `${name} `), "input", { type: "number", ...attributes });
  }

  addListeners() {
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running) this.stop("Stopped.");
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.run(); }
    });
    const place = ({ target }) => {
      const element = target.closest?.("[data-token]");
      return element && [this.pairs[element.dataset.pair], Number(element.dataset.token)];
    };
    for (const box of [this.output, this.matrix]) {
      box.addEventListener("pointerover", (event) => { const found = place(event); if (found) this.select(...found); });
    }
    this.output.addEventListener("focusin", (event) => {
      const found = place(event);
      if (!found) return;
      this.select(...found);
      announce(this.spokenAttention());
    });
    this.output.addEventListener("keydown", (event) => {
      if (!this.selected) return;
      const elements = [...this.output.querySelectorAll("[data-token]")];
      const { pair, token } = this.selected, current = elements.indexOf(pair.elements[token]);
      const next = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: elements.length - 1 }[event.key];
      if (next === undefined || !elements[next]) return;
      event.preventDefault();
      elements[next].focus();
    });
  }

  chooseModel(i) {
    this.model = this.models[i];
    this.translator = new Translator(this.model.engine, { ...this.task, search: this.model.search });
    this.layer = -1;
    document.getElementById("page").setAttribute("style", color(this.model.color));
    const { beam, length_penalty: penalty, no_repeat_ngram_size: ngrams } = this.model.search;
    [this.beam.value, this.penalty.value, this.ngrams.value] = [beam, penalty, ngrams];
    this.show([]);
    this.stop(this.names.type);
  }

  // The options of the search. Values that are not valid are replaced by the nearest valid ones.
  search() {
    for (const input of [this.beam, this.penalty, this.ngrams]) {
      const { min, max, step, value } = input, clamped = Math.min(Math.max(Number(value) || 0, min), max);
      input.value = Number(step) === 1 ? Math.round(clamped) : clamped;
    }
    const beam = Number(this.beam.value);
    return { beam, nbest: beam, length_penalty: Number(this.penalty.value), no_repeat_ngram_size: Number(this.ngrams.value) };
  }

  // Each line is a text to translate; an article may have several lines.
  texts() {
    const { value } = this.input;
    return this.translates ? value.replace(/\n+$/, "").split("\n") : [value];
  }

  stop(status) {
    this.job += 1;
    this.running = false;
    this.runButton.textContent = this.names.verb;
    this.setStatus(status);
  }

  setStatus(text) {
    this.status.textContent = text;
    if (text) announce(text);
  }

  async run() {
    const texts = this.texts(), search = this.search();
    if (!texts.some((text) => text.trim())) {
      this.stop(this.names.type);
      this.input.focus();
      return;
    }
    this.stop("");
    const job = this.job, start = performance.now(), notes = [], pairs = [];
    this.running = true;
    this.runButton.textContent = "❚❚ Stop";
    this.show([]);
    for (const [i, text] of texts.entries()) {
      const what = texts.length > 1 ? `${this.names.doing} line ${i + 1} of ${texts.length}` : this.names.doing;
      const result = await this.finishInSlices(this.translator.translate(text, search), job, what);
      if (this.job !== job) return;
      pairs.push(this.addPair(result, pairs.length));
      const where = texts.length > 1 ? `Line ${i + 1}` : "The input";
      if (result.cut) notes.push(`${where} was truncated to ${this.task.max_source_length} tokens.`);
      if (result.looped) notes.push(`${where}: the output had a repetition loop and was decoded again without repeated 3-grams.`);
      if (result.hypotheses.length && result.hypotheses[0].tokens.at(-1) !== this.translator.end) notes.push(`${where}: the output was cut at the maximum length.`);
    }
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    const what = !this.translates ? "1 article" : texts.length > 1 ? `${texts.length} lines` : "1 line";
    this.stop([`${what} ${this.names.done} in ${seconds} s.`, ...notes].join(" "));
    const first = pairs.find((pair) => pair.elements.length);
    if (first) this.select(first, 0);
    const spoken = pairs.map(({ hypotheses }) => hypotheses[0]?.text ?? "").join("\n");
    announce(`${this.names.output}: ${spoken} ${notes.join(" ")}`);
  }

  // Run a generator to its end, with pauses in which the page can react; until another job starts. The generator yields
  // the number of decoded tokens; while it encodes, none.
  async finishInSlices(generator, job, what) {
    for (;;) {
      const pause = performance.now() + SLICE;
      let result;
      do result = generator.next(); while (!result.done && performance.now() < pause);
      if (result.done) return result.value;
      this.status.textContent = result.value === undefined ? `${what}: reading …` : `${what}: ${result.value} tokens …`;
      await new Promise((resolve) => setTimeout(resolve));
      if (this.job !== job) return null;
    }
  }

  // Show no results, or forget them.
  show(pairs) {
    Object.assign(this, { pairs, selected: null });
    for (const box of [this.output, this.side, this.matrix]) box.replaceChildren();
    this.side.hidden = this.matrix.hidden = true;
  }

  addPair({ sourceIds, hypotheses }, number) {
    const box = html(this.output, "div", { class: "pair", role: "presentation" });
    const pair = { number, sourceIds, hypotheses, shown: 0, elements: [], attention: [] };
    this.pairs.push(pair);
    if (!hypotheses.length) return pair; // an empty line stays empty
    const [source, target] = ["", " target"].map((name, i) => html(null, "p", { class: `tokens${name}`, role: "presentation", ...this.languages[i] }));
    pair.target = target;
    // An article is long, so its summary is above it.
    box.append(...(this.translates ? [source, target] : [target, source]));
    pair.sourceNames = this.pieces(this.translator.source, sourceIds);
    pair.sources = this.showTokens(source, pair.sourceNames, () => ({}));
    this.showHypothesis(pair, 0);
    return pair;
  }

  // The text that each token adds.
  pieces(vocabulary, ids) {
    const decode = vocabulary.decoder();
    return ids.map((id) => (id < vocabulary.tokens.length ? decode(id) || "·" : ` ${END}`));
  }

  // One element per token; the space before a word is between the elements.
  showTokens(parent, pieces, attributes) {
    return pieces.map((text, i) => {
      if (i && /^\s/.test(text)) parent.append(" ");
      const { class: name = "", ...others } = attributes(i);
      return html(parent, "span", { ...others, class: text === ` ${END}` ? "end" : name }, text.trim() || (i ? "␣" : ""));
    });
  }

  showHypothesis(pair, i) {
    const { tokens } = pair.hypotheses[i];
    pair.shown = i;
    pair.names = this.pieces(this.translator.target, tokens);
    pair.target.replaceChildren();
    pair.elements = this.showTokens(pair.target, pair.names, (t) => ({
      class: "generated", role: "option", tabindex: -1, "aria-selected": "false", "aria-label": this.nameOf(pair.names[t]), "data-pair": pair.number, "data-token": t,
    }));
    pair.attention[i] ??= null;
    if (!this.selected && pair.elements.length) pair.elements[0].tabIndex = 0;
  }

  nameOf(text) { return text === ` ${END}` ? "end" : text.trim() || "space"; }

  // The attention of the shown hypothesis, for each token, layer and head. Another source may have been encoded since.
  attentionOf(pair) {
    if (!pair.attention[pair.shown]) {
      if (this.model.engine.source !== pair.sourceIds) finish(this.model.engine.encode(pair.sourceIds));
      pair.attention[pair.shown] = this.translator.attention(pair.hypotheses[pair.shown].tokens);
    }
    return pair.attention[pair.shown];
  }

  // The mean over the heads of the chosen layer, or of all layers.
  weights(pair, token) {
    const all = this.attentionOf(pair)[token], heads = (this.layer < 0 ? all : [all[this.layer]]).flat();
    const means = new Float64Array(pair.sourceIds.length);
    for (const shares of heads) shares.forEach((share, j) => { means[j] += share / heads.length; });
    return means;
  }

  select(pair, token) {
    if (this.running || (this.selected?.pair === pair && this.selected.token === token)) return;
    const previous = this.selected, changed = previous?.pair !== pair;
    const element = previous?.pair.elements[previous.token];
    if (element) { element.tabIndex = -1; element.setAttribute("aria-selected", "false"); }
    if (changed) for (const other of this.output.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    this.selected = { pair, token };
    pair.elements[token].tabIndex = 0;
    pair.elements[token].setAttribute("aria-selected", "true");
    if (changed) this.showMatrix();
    this.colorSource();
    this.showSide();
  }

  colorSource() {
    for (const element of this.colored ?? []) element.classList.remove("attended");
    const { pair, token } = this.selected;
    this.colored = [];
    this.weights(pair, token).forEach((weight, j) => {
      if (weight < 0.01) return;
      pair.sources[j].classList.add("attended");
      pair.sources[j].style.setProperty("--weight", `${(70 * Math.sqrt(weight)).toFixed(0)}%`);
      this.colored.push(pair.sources[j]);
    });
    for (const label of this.matrix.querySelectorAll(".row")) label.classList.toggle("chosen", Number(label.dataset.token) === token);
  }

  spokenAttention() {
    const { pair, token } = this.selected, weights = this.weights(pair, token);
    const sources = topIndices(weights, 3).map((j) => `${this.nameOf(pair.sourceNames[j])} ${percent(weights[j])}`);
    return `${this.nameOf(pair.names[token])} attended to ${sources.join(", ")}`;
  }

  showSide() {
    const { side } = this, { pair, token } = this.selected, weights = this.weights(pair, token);
    side.hidden = false;
    side.replaceChildren();
    html(side, "h3", {}, `‹${this.nameOf(pair.names[token])}› attended to`);
    bars(side, topIndices(weights, TOP_SOURCES).map((j) => [this.nameOf(pair.sourceNames[j]), weights[j]]), "next-tokens");
    const layers = this.attentionOf(pair)[token].length, names = this.layerNames(layers);
    if (layers > 1) {
      const choices = html(side, "div", { class: "choices", role: "group", "aria-label": "layer whose attention is shown" });
      ["all layers", ...names].forEach((name, i) => {
        const choose = () => { this.layer = i - 1; this.showMatrix(); this.colorSource(); this.showSide(); this.side.querySelectorAll(".choices button")[i].focus(); };
        button(choices, i ? name.replace("pass ", "").replace(", layer ", "·").replace("layer ", "") : "all", choose, { "aria-pressed": String(this.layer === i - 1), "aria-label": name, title: name });
      });
    }
    this.showHypotheses(side, pair);
    memoryBars(side, this.model);
  }

  layerNames(count) { return count > 1 ? layerNames(this.model, count) : ["the attention to the source"]; }

  showHypotheses(side, pair) {
    if (pair.hypotheses.length < 2) return;
    html(side, "h4", {}, "Best hypotheses and their scores");
    const list = html(side, "div", { class: "hypotheses", role: "group", "aria-label": "hypothesis that is shown" });
    pair.hypotheses.forEach(({ text, score }, i) => {
      const choose = () => {
        this.selected = null;
        this.showHypothesis(pair, i);
        this.select(pair, 0);
        this.side.querySelectorAll(".hypotheses button")[i].focus();
      };
      const entry = button(list, "", choose, { "aria-pressed": String(pair.shown === i) });
      html(entry, "span", {}, text);
      html(entry, "span", { class: "percent" }, score.toFixed(2));
    });
  }

  // One row per output token, one column per source token.
  showMatrix() {
    const { matrix } = this, { pair } = this.selected, J = pair.sourceIds.length;
    matrix.hidden = false;
    matrix.replaceChildren();
    html(matrix, "h3", {}, "Attention to the input");
    const grid = html(matrix, "div", { class: "attention-grid" });
    html(grid, "span", { class: "corner" });
    const labels = html(grid, "div", { class: "labels", "aria-hidden": "true" });
    if (J <= MAX_LABELS) for (const name of pair.sourceNames) html(labels, "span", {}, this.nameOf(name));
    else html(labels, "span", { class: "long" }, `${J} tokens of the input`);
    pair.names.forEach((name, t) => {
      const weights = this.weights(pair, t), [best] = topIndices(weights, 1);
      html(grid, "span", { class: "label" }, this.nameOf(name));
      const description = `${this.nameOf(name)}: ${percent(weights[best])} on ${this.nameOf(pair.sourceNames[best])}`;
      const strip = svg(grid, "svg", { class: "row", "data-pair": pair.number, "data-token": t, viewBox: `0 0 ${J} 1`, preserveAspectRatio: "none", role: "img", "aria-label": description });
      weights.forEach((weight, j) => { if (weight > 0.005) svg(strip, "rect", { class: "heat", x: j, y: 0, width: 1, height: 1, "fill-opacity": weight.toFixed(3) }); });
    });
    html(matrix, "p", { class: "caption" }, `Each row is a token of the output, each column a token of the input, averaged over heads. ${END}, or end: the end token.`);
  }
}

const { task } = data;
const models = data.models.map(({ name, color: index, header, search }, i) => {
  const block = document.getElementById(`parameters-${i}`);
  const engine = new Seq2SeqEngine(header, unpackParameters(header, block.textContent));
  block.remove();
  return { name, color: index, header, search, engine };
});
const page = new TranslationPage(document.getElementById("page"), models, task);
