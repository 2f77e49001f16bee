// Episodes of the random walk step by step: the true position of the agent and the predictions of each model.
class PredictionCard {
  constructor(parent, size, model) {
    const box = html(parent, "figure", { class: "card walk", style: color(model.color) });
    heading(box, model.name);
    this.grid = new PredictionGrid(box, size, model.name);
    this.status = html(box, "p", { class: "status" });
  }

  // Returns whether the answer is correct.
  show(episode, step, { answers, probabilities }, correct) {
    const answer = answers[step], cell = episode.cells[step];
    this.grid.show(probabilities[step].map((p) => p / 1000), answer, cell, episode.headings[step]);
    this.status.replaceChildren();
    html(this.status, "b", {}, answer === cell ? "✓ correct" : "✗ wrong");
    this.status.append(`: ${(probabilities[step][answer] / 10).toFixed(0)}% for ${cellName(answer, this.grid.size)}.`);
    html(this.status, "br");
    this.status.append(step ? `Correct so far: ${correct} of ${step} (${((100 * correct) / step).toFixed(0)}%)` : "Nothing scored yet");
    return answer === cell;
  }
}

// One mark per step; its opacity is the probability of the true cell.
class ProbabilityStrip {
  constructor(parent, model, goTo) {
    const box = html(parent, "div", { class: "strip", style: color(model.color) });
    const name = html(box, "span");
    html(name, "span", { class: "swatch" });
    name.append(model.name);
    this.image = svg(box, "svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.percent = html(box, "span", { class: "percent" });
    this.image.addEventListener("click", (event) => goTo(stepAt(event, this.image, this.steps)));
    this.image.addEventListener("pointermove", (event) => {
      const step = stepAt(event, this.image, this.steps);
      showTip(event, `step ${step}`, [[`${model.name}: the true cell`, `${(this.probabilities[step] / 10).toFixed(0)}%`, model.color]]);
    });
    this.image.addEventListener("pointerleave", hideTip);
  }

  load(episode, { answers, probabilities }) {
    this.steps = episode.cells.length;
    this.probabilities = probabilities.map((row, step) => row[episode.cells[step]]);
    this.image.replaceChildren();
    this.image.setAttribute("viewBox", `0 0 ${this.steps} 1`);
    this.probabilities.forEach((p, x) => svg(this.image, "rect", { class: "heat", x, y: 0, width: 1, height: 1, "fill-opacity": (p / 1000).toFixed(3) }));
    this.cursor = svg(this.image, "rect", { class: "cursor", y: 0, width: 1, height: 1 });
    const correct = answers.filter((answer, step) => step && answer === episode.cells[step]).length;
    this.percent.textContent = `${((100 * correct) / Math.max(1, this.steps - 1)).toFixed(0)}%`;
    this.percent.title = "accuracy over the episode";
  }
}

class Walk extends Player {
  constructor(root, walk) {
    super(root, "step of the walk");
    this.walk = walk;
    this.episodeMenu(walk.episodes.length);
    const grids = html(root, "div", { class: "walks" });
    this.truth = new TruthCard(grids, walk.grid);
    this.cards = walk.models.map((model) => new PredictionCard(grids, walk.grid, model));
    gridLegend(root);
    const strips = html(root, "div", { class: "card strips" });
    html(strips, "h3", {}, "Probability of the true cell, step by step");
    this.strips = walk.models.map((model) => new ProbabilityStrip(strips, model, (step) => this.goTo(step)));
    html(strips, "p", { class: "caption" }, "Full color: probability 1. On the right: accuracy over the episode. Click to go to a step.");
    this.load(0);
  }

  episodeMenu(episodes) {
    if (episodes < 2) return;
    const menu = html(this.options, "select", { "aria-label": "episode" });
    for (let i = 0; i < episodes; i++) html(menu, "option", { value: i }, `episode ${i + 1}`);
    menu.addEventListener("change", () => this.load(Number(menu.value)));
  }

  load(number) {
    this.stop();
    this.episode = this.walk.episodes[number];
    this.predictions = this.walk.models.map((model) => model.predictions[number]);
    this.strips.forEach((strip, i) => strip.load(this.episode, this.predictions[i]));
    // Correct answers of each model up to each step; the reset is not scored.
    this.correct = this.predictions.map(({ answers }) => {
      let correct = 0;
      return answers.map((answer, step) => (correct += step && answer === this.episode.cells[step] ? 1 : 0));
    });
    this.show(Math.floor((this.episode.cells.length - 1) / 2));
  }

  get last() { return this.episode.cells.length - 1; }

  draw(step) {
    const { actions, cells, headings } = this.episode;
    const text = describeAction(actions[step], headings[step], cells[step] !== cells[step - 1]);
    this.truth.show(cells.slice(0, step + 1), headings[step]);
    const verdicts = this.cards.map((card, i) => {
      const correct = card.show(this.episode, step, this.predictions[i], this.correct[i][step]);
      return `${this.walk.models[i].name} is ${correct ? "correct" : "wrong"}`;
    });
    this.strips.forEach((strip) => strip.cursor.setAttribute("x", step));
    return { text, spoken: `${text}; ${verdicts.join(", ")}` };
  }
}

for (const root of document.querySelectorAll("[data-walk]")) new Walk(root, data.walks[root.dataset.walk]);
