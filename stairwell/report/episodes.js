// Episodes of agents step by step: the environment, actions, rewards, values, and attention to the frames in memory.
const MAX_IMAGE_WIDTH = 400;
const decimals = (value) => String(Number(value.toFixed(3)));

// The images of an episode. Each patch is what changed since the image before, so patches are drawn in order.
class EpisodeImages {
  constructor(episode) {
    this.episode = episode;
    this.patches = episode.steps.map(({ patch }) => {
      if (!patch) return null;
      const image = new Image();
      image.src = patch.image;
      return { image, x: patch.x, y: patch.y };
    });
    this.ready = Promise.all(this.patches.filter(Boolean).map(({ image }) => image.decode()));
  }

  // Small images are enlarged to `minWidth` pixels, large ones reduced so that two fit beside each other.
  addCanvas(parent, minWidth) {
    const { width, height } = this.episode;
    const canvas = html(parent, "canvas", { width, height, role: "img", style: `width: ${Math.min(Math.max(width, minWidth), MAX_IMAGE_WIDTH)}px` });
    canvas.step = -1;
    return canvas;
  }

  draw(canvas, step, label) {
    canvas.setAttribute("aria-label", label);
    const first = step > canvas.step ? canvas.step + 1 : 0;
    const context = canvas.getContext("2d");
    for (const patch of this.patches.slice(first, step + 1)) if (patch) context.drawImage(patch.image, patch.x, patch.y);
    canvas.step = step;
  }
}

// A strip with one mark per step, its name and the current value. `tipAt(step)` returns the row of the tooltip, if any.
class Strip {
  constructor(parent, name, steps, goTo, tipAt) {
    html(parent, "span", { class: "label" }, name);
    this.image = svg(parent, "svg", { viewBox: `0 0 ${steps} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.value = html(parent, "span", { class: "number" });
    this.image.addEventListener("click", (event) => goTo(stepAt(event, this.image, steps)));
    this.image.addEventListener("pointermove", (event) => {
      const step = stepAt(event, this.image, steps), row = tipAt(step);
      if (row) showTip(event, `step ${step}`, [row]);
      else hideTip();
    });
    this.image.addEventListener("pointerleave", hideTip);
  }

  addCursor() {
    this.cursor = svg(this.image, "rect", { class: "cursor", y: 0, width: 1, height: 1 });
  }

  show(step, value) {
    this.cursor.setAttribute("x", step);
    this.value.textContent = value;
  }
}

class EpisodeCard {
  constructor(parent, episode, steps, goTo) {
    this.episode = episode;
    this.box = html(parent, "div", { class: "card episode", style: color(episode.color) });
    heading(this.box, episode.name);
    let sum = 0;
    this.returns = episode.steps.map(({ reward }) => (sum += reward));
    this.addImages(episode);
    this.status = html(this.box, "p", { class: "status" });
    const strips = html(this.box, "div", { class: "tracks" });
    this.rewards = this.rewardStrip(strips, steps, goTo);
    this.values = this.valueStrip(strips, steps, goTo);
    this.layers = episode.layers.map((name, layer) => this.attentionStrip(strips, name, layer, steps, goTo));
  }

  addImages({ width, layers }) {
    const box = html(this.box, "div", { class: "images" });
    const current = html(box, "figure");
    if (width) {
      this.images = new EpisodeImages(this.episode);
      this.currentImage = this.images.addCanvas(current, 280);
    } else {
      this.currentText = html(current, "p", { class: "observation" });
    }
    html(current, "figcaption", {}, width ? "current frame" : "current observation");
    if (!layers.length) return;
    const attended = html(box, "figure", { class: "attended" });
    if (width) this.attendedImage = this.images.addCanvas(attended, 0);
    else this.attendedText = html(attended, "p", { class: "observation" });
    this.attendedCaption = html(attended, "figcaption");
  }

  rewardStrip(parent, steps, goTo) {
    const rewards = this.episode.steps.map(({ reward }) => reward);
    const low = Math.min(0, ...rewards), high = Math.max(0, ...rewards), range = high - low || 1;
    const strip = new Strip(parent, "reward", steps, goTo, (step) => step < rewards.length && ["reward", decimals(rewards[step]), this.episode.color]);
    rewards.forEach((reward, x) => {
      if (reward) svg(strip.image, "rect", { class: "bar", x, width: 1, y: (high - Math.max(0, reward)) / range, height: Math.abs(reward) / range });
    });
    strip.addCursor();
    return strip;
  }

  valueStrip(parent, steps, goTo) {
    const values = this.episode.steps.map(({ value }) => value);
    const low = Math.min(0, ...values), high = Math.max(0, ...values), range = high - low || 1;
    const strip = new Strip(parent, "value", steps, goTo, (step) => step < values.length && ["value", decimals(values[step]), this.episode.color]);
    const points = values.map((value, x) => `${x + 0.5} ${(0.12 + 0.76 * ((high - value) / range)).toFixed(3)}`);
    svg(strip.image, "path", { class: "value", d: `M${points.join("L")}` });
    strip.addCursor();
    return strip;
  }

  attentionStrip(parent, name, layer, steps, goTo) {
    const strip = new Strip(parent, name, steps, goTo, (step) => {
      const weight = this.weightsByStep(layer)[step];
      return weight !== undefined && [`${name}, attention`, `${(weight / 10).toFixed(1)}%`, this.episode.color];
    });
    strip.cells = this.episode.steps.map((_, x) => svg(strip.image, "rect", { class: "heat", x, y: 0, width: 1, height: 1, "fill-opacity": 0 }));
    strip.memory = svg(strip.image, "rect", { class: "memory", y: 0, height: 1 });
    strip.addCursor();
    return strip;
  }

  // The attention of a layer at the current step, in thousandths, by the step of the attended frame.
  weightsByStep(layer) {
    const weights = [];
    this.episode.steps[this.step].attention[layer].forEach((weight, i) => {
      const step = this.step - this.episode.first - i;
      if (step >= 0) weights[step] = weight;
    });
    return weights;
  }

  // Returns a description for screen readers. `step` may be beyond the end of this episode.
  show(step) {
    const { steps, done } = this.episode, last = steps.length - 1;
    this.step = Math.min(step, last);
    const { action, reward, value, observation } = steps[this.step];
    const note = step > last ? ` (${done ? "the episode ended here" : "later steps are not stored"})` : "";
    const episodeReturn = decimals(this.returns[this.step]);
    const text = `${action}, reward ${decimals(reward)}, return ${episodeReturn}${note}`;
    this.status.replaceChildren();
    html(this.status, "b", {}, action);
    this.status.append(`, return so far ${episodeReturn}${note}`);
    this.rewards.show(this.step, decimals(reward));
    this.values.show(this.step, decimals(value));
    const peak = this.showAttention();
    if (this.images) this.images.ready.then(() => this.drawImages(text, peak));
    else this.currentText.textContent = observation;
    if (this.attendedText) this.attendedText.textContent = peak ? steps[peak.step].observation : "";
    return `${text}, value ${decimals(value)}${peak ? `, most attention to step ${peak.step}` : ""}`;
  }

  // Returns the frame with the largest attention weight of any layer, if there is one.
  showAttention() {
    let peak = null;
    this.layers.forEach((strip, layer) => {
      const weights = this.weightsByStep(layer);
      const inMemory = Object.keys(weights).map(Number), highest = Math.max(0, ...inMemory.map((step) => weights[step]));
      strip.cells.forEach((cell, step) => cell.setAttribute("fill-opacity", Math.sqrt((weights[step] || 0) / (highest || 1)).toFixed(2)));
      strip.memory.setAttribute("x", inMemory.length ? inMemory[0] : 0);
      strip.memory.setAttribute("width", inMemory.length);
      strip.show(this.step, inMemory.length ? `${(highest / 10).toFixed(0)}%` : "");
      if (highest > (peak ? peak.weight : 0)) peak = { weight: highest, step: weights.indexOf(highest), layer: this.episode.layers[layer] };
    });
    if (this.attendedCaption) this.attendedCaption.textContent = peak ? `most attention: step ${peak.step}, ${(peak.weight / 10).toFixed(0)}% of ${peak.layer}` : "the memory is empty";
    return peak;
  }

  drawImages(text, peak) {
    this.images.draw(this.currentImage, this.step, `the environment at step ${this.step}: ${text}`);
    if (!this.attendedImage) return;
    this.attendedImage.style.visibility = peak ? "visible" : "hidden";
    if (peak) this.images.draw(this.attendedImage, peak.step, `the environment at step ${peak.step}, which gets most attention`);
  }
}

class Episodes extends Player {
  constructor(root, episodes) {
    super(root, "step of the episode");
    this.steps = Math.max(...episodes.map(({ steps }) => steps.length));
    const box = html(root, "div", { class: "episodes" });
    this.cards = episodes.map((episode) => new EpisodeCard(box, episode, this.steps, (step) => this.goTo(step)));
    this.show(this.last);
  }

  get last() { return this.steps - 1; }

  draw(step) {
    return { text: "", spoken: this.cards.map((card) => `${card.episode.name}: ${card.show(step)}`).join("; ") };
  }
}

for (const root of document.querySelectorAll("[data-episodes]")) new Episodes(root, data.episodes);
