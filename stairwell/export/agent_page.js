// Agents play an environment: watch them, or take over the keys. Every agent has its own copy of the environment.
const PAUSES = [["slow", 700], ["normal", 250], ["fast", 60]]; // milliseconds per step
const YELLOW = {
  "corridor": "Yellow: the cells whose colors the agent observes now.",
  "maze": "Yellow: the cells that the agent observes now. It also observes the color of the target.",
  "water-maze": "Yellow: the cells in which the agent observes that the goal (red) is near. It also observes the label of its own cell and that of the goal; a darker gray is a higher label.",
};
const ARROWS = { ArrowRight: "→", ArrowUp: "↑", ArrowLeft: "←", ArrowDown: "↓" };

// The keys of each action, in order.
function keysOfActions({ type, easy, colors, actions }) {
  if (type === "corridor") {
    const doors = actions.slice(1).map((_, i) => [String(i + 1)]);
    if (colors === 2) doors.forEach((keys, i) => keys.unshift(["ArrowUp", "ArrowDown"][i]));
    return [["ArrowRight"], ...doors];
  }
  if (type === "maze" && !easy) return [["ArrowUp"], ["ArrowLeft"], ["ArrowRight"]];
  return [["ArrowRight"], ["ArrowUp"], ["ArrowLeft"], ["ArrowDown"]];
}

// The order of the buttons, as on a keyboard.
const ORDER = ["ArrowLeft", "ArrowUp", "ArrowDown", "ArrowRight"];

const number = (value) => String(Number(value.toFixed(2)));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

class AgentCard {
  constructor(parent, model, environment) {
    Object.assign(this, { model, actions: environment.actions, play: new AgentPlay(model.engine, environment) });
    this.box = html(parent, "figure", { class: "card agent-card", style: color(model.color) });
    this.score = html(heading(this.box, model.name), "span", { class: "accuracy" });
    const columns = html(this.box, "div", { class: "agent-columns" });
    this.left = html(columns, "div");
    const right = html(columns, "div");
    this.status = html(right, "p", { class: "status" });
    html(right, "h4", {}, "What the agent would do now");
    this.policy = html(right, "div", { role: "group", "aria-label": `policy of ${model.name}` });
    this.facts = html(right, "p", { class: "status" });
    this.attention = html(right, "div");
  }

  restart(seed) {
    this.returns = { agent: [], person: [] };
    this.play.restart(seed);
    this.takenOver = false;
    if (!this.scene) {
      const { env } = this.play;
      this.target = env.target === null ? null : html(this.left, "p", { class: "target" });
      this.scene = new Scene(this.left, env, `${this.model.name} in the environment`);
      if (this.scene.shown < env.columns) {
        html(this.left, "p", { class: "note" }, "The whole hallway, with the attention:");
        this.hallway = new HallwayStrip(this.left, env);
      }
    }
    this.describe("The start of an episode.");
    this.show();
  }

  // The action of the agent, or of a person. After the end of an episode, the next one starts instead.
  step(deterministic, action = null) {
    const { play } = this;
    if (play.done) {
      play.startEpisode();
      this.takenOver = false;
      this.describe("The start of the next episode.");
      return this.show();
    }
    this.takenOver ||= action !== null;
    const chosen = action ?? play.choose(deterministic);
    const { reward, terminated, truncated } = play.act(chosen);
    const end = terminated ? " The episode ends." : truncated ? " The episode ends: its time is over." : "";
    this.describe(`${action === null ? "Agent" : "You"}: ${this.actions[chosen]}${reward ? `, reward ${number(reward)}` : ""}.${end}`, reward);
    if (play.done) this.returns[this.takenOver ? "person" : "agent"].push(play.return);
    return this.show();
  }

  describe(text, reward = 0) {
    this.text = text;
    this.box.classList.toggle("rewarded", reward > 0);
  }

  show() {
    const { play, model } = this, { policy, value, attention } = play.output, weights = play.attentionByPlace();
    this.showTarget();
    this.scene.draw(play.env, weights, "");
    this.hallway?.draw(play.env, weights);
    this.status.replaceChildren();
    html(this.status, "b", {}, `Step ${play.env.elapsedSteps}`);
    this.status.append(` ${this.text}`);
    const probabilities = softmax(policy), best = topIndices(probabilities, 1)[0];
    this.policy.replaceChildren();
    bars(this.policy, this.actions.map((name, i) => [name, probabilities[i], i === best]));
    this.facts.textContent = `Return so far ${number(play.return)}; the agent expects ${number(value)} more (discounted).`;
    this.showAttention(attention);
    this.showScore();
  }

  showTarget() {
    if (!this.target) return;
    this.target.replaceChildren("Target: ");
    html(this.target, "span", { class: "disc", style: `background: ${data.colors[this.play.env.target]}`, role: "img", "aria-label": `color ${this.play.env.target + 1}` });
  }

  showAttention(attention) {
    this.attention.replaceChildren();
    html(this.attention, "h4", {}, "Attention to the frames in memory");
    if (!attention.length) html(this.attention, "p", { class: "note" }, `${this.model.name} has no attention.`);
    else attentionPlots(this.attention, layerNames(this.model, attention.length), attention, (distance) => `step ${this.play.places.length - 1 - distance}`, "frames");
  }

  showScore() {
    const { agent, person } = this.returns;
    const parts = [["agent", agent], ["you", person]].filter(([, returns]) => returns.length);
    this.score.replaceChildren();
    parts.forEach(([who, returns]) => {
      html(this.score, "small", {}, `${who}: mean return `);
      this.score.append(number(mean(returns)));
      html(this.score, "small", {}, ` in ${returns.length} ${returns.length > 1 ? "episodes" : "episode"} `);
    });
  }

  spoken() { return `${this.model.name}: ${this.text} Now ${this.play.env.describe()}.`; }
}

class AgentPage {
  constructor(root, models, environment) {
    this.keys = keysOfActions(environment);
    this.timer = null;
    this.addControls(root, environment);
    this.cards = models.map((model) => new AgentCard(root, model, environment));
    html(root, "p", { class: "note" }, `${YELLOW[environment.type]} The model's color: attention to the frames in which the agent was in that cell, averaged over heads and layers.`);
    addEventListener("keydown", (event) => this.onKey(event));
    this.restart();
  }

  addControls(root, { actions }) {
    const bar = html(root, "div", { class: "controls drive" });
    const keys = html(bar, "div", { class: "keys", role: "group", "aria-label": "actions" });
    const order = actions.map((_, action) => action).sort((a, b) => ORDER.indexOf(this.keys[a][0]) - ORDER.indexOf(this.keys[b][0]));
    for (const action of order) {
      const [key] = this.keys[action];
      button(keys, `${ARROWS[key] ?? key} ${actions[action]}`, () => this.press(action), { "aria-keyshortcuts": this.keys[action].join(" "), "data-action": action });
    }
    const options = html(bar, "div", { class: "options" });
    this.playButton = button(options, "▶ Play", () => (this.timer ? this.stop() : this.run()), { class: "play" });
    button(options, "Restart", () => this.restart());
    const settings = html(root, "div", { class: "settings" });
    this.speed = this.menu(settings, "Speed", PAUSES.map(([name, pause]) => [pause, name]), 250);
    this.speed.addEventListener("change", () => { if (this.timer) this.run(); });
    this.choice = this.menu(settings, "Actions", [["sampled", "sampled"], ["best", "most probable"]], "sampled");
    const label = html(settings, "label", {}, "Seed ");
    this.seed = html(label, "input", { type: "number", min: 0, step: 1, value: 0 });
    this.seed.addEventListener("change", () => this.restart());
    html(settings, "p", { class: "hint" }, "The keys on the buttons move the agent, P plays and pauses, R restarts. A seed gives the same episodes and actions as “stairwell play --seed”.");
  }

  menu(parent, name, entries, value) {
    const menu = html(html(parent, "label", {}, `${name} `), "select");
    for (const [key, text] of entries) html(menu, "option", { value: key }, text);
    menu.value = value;
    return menu;
  }

  restart() {
    this.stop();
    const seed = Math.floor(Number(this.seed.value));
    this.seed.value = Number.isSafeInteger(seed) && seed >= 0 ? seed : 0;
    this.cards.forEach((card) => card.restart(this.seed.value));
  }

  // Take over: an action of the person, in all environments.
  press(action) {
    this.stop();
    this.step(action);
    announce(this.cards.map((card) => card.spoken()).join(" "));
  }

  step(action = null) {
    this.cards.forEach((card) => card.step(this.choice.value === "best", action));
  }

  run() {
    this.stop();
    this.playButton.textContent = "❚❚ Pause";
    const slowest = matchMedia("(prefers-reduced-motion: reduce)").matches ? 400 : 0;
    this.timer = setInterval(() => this.step(), Math.max(slowest, Number(this.speed.value)));
  }

  stop() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    this.playButton.textContent = "▶ Play";
    announce(this.cards.map((card) => card.spoken()).join(" "));
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const action = this.keys.findIndex((keys) => keys.includes(key));
    if (action >= 0) this.press(action);
    else if (key === "p") this.playButton.click();
    else if (key === "r") this.restart();
    else return;
    event.preventDefault();
  }
}

const { environment } = data;
const models = data.models.map(({ name, color: index, header }, i) => {
  const block = document.getElementById(`parameters-${i}`);
  const engine = new AgentEngine(header, decodeParameters(block.textContent));
  block.remove();
  return { name, color: index, header, engine };
});
const page = new AgentPage(document.getElementById("page"), models, environment);
