// Agents' episodes step by step: the environment, what an agent does, earns and expects, and what it attends to in its memory.
const decimals = (value) => String(Number(value.toFixed(3)));

// The pictures of an episode. Each is what has changed since the one before, so that all up to a step are drawn in turn.
class Film {
  constructor(episode) {
    this.episode = episode;
    this.pieces = episode.steps.map(({ patch }) => {
      if (!patch) return null;
      const image = new Image();
      image.src = patch.image;
      return { image, x: patch.x, y: patch.y };
    });
    this.ready = Promise.all(this.pieces.filter(Boolean).map(({ image }) => image.decode()));
  }

  // A canvas to draw on, small pictures enlarged to `least` pixels.
  screen(parent, least) {
    const { width, height } = this.episode;
    const canvas = html(parent, "canvas", { width, height, role: "img", style: `width: ${Math.max(width, least)}px` });
    canvas.drawn = -1;
    return canvas;
  }

  show(canvas, step, words) {
    canvas.setAttribute("aria-label", words);
    const from = step > canvas.drawn ? canvas.drawn + 1 : 0;
    const pen = canvas.getContext("2d");
    for (const piece of this.pieces.slice(from, step + 1)) if (piece) pen.drawImage(piece.image, piece.x, piece.y);
    canvas.drawn = step;
  }
}

// A line of one mark a step, with its name before and the present number behind it.
class Track {
  constructor(parent, name, steps, jump, told) {
    html(parent, "span", { class: "label" }, name);
    this.picture = svg(parent, "svg", { viewBox: `0 0 ${steps} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.number = html(parent, "span", { class: "number" });
    const at = (event) => {
      const box = this.picture.getBoundingClientRect();
      return Math.min(steps - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * steps)));
    };
    this.picture.addEventListener("click", (event) => jump(at(event)));
    this.picture.addEventListener("pointermove", (event) => {
      const words = told(at(event));
      if (words) showTip(event, `step ${at(event)}`, [words]);
      else hideTip();
    });
    this.picture.addEventListener("pointerleave", hideTip);
  }

  mark() {
    this.now = svg(this.picture, "rect", { class: "now", y: 0, width: 1, height: 1 });
  }

  go(step, words) {
    this.now.setAttribute("x", step);
    this.number.textContent = words;
  }
}

class Played {
  constructor(parent, episode, steps, jump) {
    this.episode = episode;
    this.box = html(parent, "div", { class: "card played", style: color(episode.color) });
    const title = html(this.box, "h3");
    html(title, "span", { class: "swatch" });
    title.append(episode.name);
    let sum = 0;
    this.earned = episode.steps.map(({ reward }) => (sum += reward));
    this.pictures(episode);
    this.says = html(this.box, "p", { class: "says" });
    const tracks = html(this.box, "div", { class: "tracks" });
    this.rewards = this.rewardTrack(tracks, steps, jump);
    this.values = this.valueTrack(tracks, steps, jump);
    this.layers = episode.layers.map((name, layer) => this.layerTrack(tracks, name, layer, steps, jump));
  }

  pictures({ width, layers }) {
    const box = html(this.box, "div", { class: "pictures" });
    const scene = html(box, "figure");
    if (!width) {
      this.observed = html(scene, "p", { class: "observed" });
    } else {
      this.film = new Film(this.episode);
      this.scene = this.film.screen(scene, 280);
    }
    html(scene, "figcaption", {}, width ? "now" : "observes now");
    if (!layers.length) return;
    const past = html(box, "figure", { class: "past" });
    if (width) this.past = this.film.screen(past, 0);
    else this.pastObserved = html(past, "p", { class: "observed" });
    this.pastWords = html(past, "figcaption");
  }

  rewardTrack(parent, steps, jump) {
    const rewards = this.episode.steps.map(({ reward }) => reward);
    const low = Math.min(0, ...rewards), high = Math.max(0, ...rewards), size = high - low || 1;
    const track = new Track(parent, "reward", steps, jump, (step) => step < rewards.length && ["reward", decimals(rewards[step]), this.episode.color]);
    rewards.forEach((reward, x) => {
      if (reward) svg(track.picture, "rect", { class: "bar", x, width: 1, y: (high - Math.max(0, reward)) / size, height: Math.abs(reward) / size });
    });
    track.mark();
    return track;
  }

  valueTrack(parent, steps, jump) {
    const values = this.episode.steps.map(({ value }) => value);
    const low = Math.min(0, ...values), high = Math.max(0, ...values), size = high - low || 1;
    const track = new Track(parent, "expects", steps, jump, (step) => step < values.length && ["expects", decimals(values[step]), this.episode.color]);
    const points = values.map((value, x) => `${x + 0.5} ${(0.06 + 0.88 * ((high - value) / size)).toFixed(3)}`);
    svg(track.picture, "path", { class: "value", d: `M${points.join("L")}` });
    track.mark();
    return track;
  }

  layerTrack(parent, name, layer, steps, jump) {
    const track = new Track(parent, name, steps, jump, (step) => {
      const share = this.shares(layer)[step];
      return share !== undefined && [`${name}, attention`, `${(share / 10).toFixed(1)}%`, this.episode.color];
    });
    track.cells = this.episode.steps.map((_, x) => svg(track.picture, "rect", { class: "heat", x, y: 0, width: 1, height: 1, "fill-opacity": 0 }));
    track.held = svg(track.picture, "rect", { class: "held", y: 0, height: 1 });
    track.mark();
    return track;
  }

  // How much attention a layer gives to each frame, by its step, at the step that is shown.
  shares(layer) {
    const found = [];
    this.episode.steps[this.step].attention[layer].forEach((share, back) => {
      const step = this.step - this.episode.first - back;
      if (step >= 0) found[step] = share;
    });
    return found;
  }

  show(wanted) {
    const { steps, ended } = this.episode, last = steps.length - 1;
    this.step = Math.min(wanted, last);
    const { action, reward, value, observed } = steps[this.step];
    const over = wanted > last ? ` (${ended ? "the episode ended here" : "not kept any further"})` : "";
    const words = `${action}, reward ${decimals(reward)}, return ${decimals(this.earned[this.step])}${over}`;
    this.says.replaceChildren();
    html(this.says, "b", {}, action);
    this.says.append(`, return so far ${decimals(this.earned[this.step])}${over}`);
    this.rewards.go(this.step, decimals(reward));
    this.values.go(this.step, decimals(value));
    const best = this.showAttention();
    if (this.film) this.film.ready.then(() => this.draw(words, best));
    else this.observed.textContent = observed;
    if (this.pastObserved) this.pastObserved.textContent = best ? steps[best.step].observed : "";
    return `${words}, expects ${decimals(value)}${best ? `, looks most at step ${best.step}` : ""}`;
  }

  // Colors of all layers' strips; the frame that gets most attention in any layer, if there is one.
  showAttention() {
    let best = null;
    this.layers.forEach((track, layer) => {
      const shares = this.shares(layer);
      const held = Object.keys(shares).map(Number), most = Math.max(0, ...held.map((step) => shares[step]));
      track.cells.forEach((cell, step) => cell.setAttribute("fill-opacity", Math.sqrt((shares[step] || 0) / (most || 1)).toFixed(2)));
      track.held.setAttribute("x", held.length ? held[0] : 0);
      track.held.setAttribute("width", held.length);
      track.go(this.step, held.length ? `${(most / 10).toFixed(0)}%` : "");
      if (most > (best ? best.share : 0)) best = { share: most, step: shares.indexOf(most), layer: this.episode.layers[layer] };
    });
    if (this.pastWords) this.pastWords.textContent = best ? `looks most at step ${best.step}: ${(best.share / 10).toFixed(0)}% of ${best.layer}` : "remembers nothing yet";
    return best;
  }

  draw(words, best) {
    this.film.show(this.scene, this.step, `the environment at step ${this.step}: ${words}`);
    if (!this.past) return;
    this.past.style.visibility = best ? "visible" : "hidden";
    if (best) this.film.show(this.past, best.step, `the environment at step ${best.step}, which gets most attention`);
  }
}

class Episodes extends Player {
  constructor(root, episodes) {
    super(root, "step of the episode");
    this.longest = Math.max(...episodes.map(({ steps }) => steps.length));
    const box = html(root, "div", { class: "episodes" });
    this.episodes = episodes.map((episode) => new Played(box, episode, this.longest, (step) => this.jump(step)));
    this.go(this.last);
  }

  get last() {
    return this.longest - 1;
  }

  show(step) {
    const said = this.episodes.map((one) => [one.episode.name, one.show(step)]);
    return { words: "", spoken: said.map(([name, words]) => `${name}: ${words}`).join("; ") };
  }
}

for (const root of document.querySelectorAll("[data-played]")) new Episodes(root, data.played);
