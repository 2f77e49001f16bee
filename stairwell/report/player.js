// Controls to step through an episode. Subclasses define `last`, the last step, and `draw(step)`, which draws a step and
// returns { text, spoken }: a description to show, and one for screen readers.
class Player {
  constructor(root, label) {
    this.timer = null;
    const bar = html(root, "div", { class: "controls" });
    this.button = button(bar, "▶ Play", () => (this.timer ? this.stop() : this.play()), { class: "play" });
    this.range = html(bar, "input", { type: "range", min: 0, step: 1, "aria-label": label });
    this.range.addEventListener("input", () => this.goTo(Number(this.range.value)));
    this.options = html(bar, "div", { class: "options" });
    this.speed = html(this.options, "select", { "aria-label": "speed" });
    for (const [name, pause] of [["slow", 900], ["normal", 450], ["fast", 150]]) html(this.speed, "option", { value: pause }, name);
    this.speed.value = 450;
    this.speed.addEventListener("change", () => { if (this.timer) this.play(); });
    this.description = html(bar, "div", { class: "description" });
    root.addEventListener("keydown", (event) => this.onKey(event));
  }

  // The slider and the buttons handle their own keys.
  onKey(event) {
    const { target, key } = event, space = key === " ";
    if (target.closest("select") || (space ? target.closest("button") : target === this.range)) return;
    const step = { ArrowRight: this.step + 1, ArrowLeft: this.step - 1, Home: 0, End: this.last }[key];
    if (space) this.button.click();
    else if (step !== undefined) this.goTo(Math.min(this.last, Math.max(0, step)));
    else return;
    event.preventDefault();
  }

  goTo(step) {
    this.stop();
    this.show(step);
  }

  show(step) {
    this.step = step;
    const { text, spoken } = this.draw(step);
    this.description.replaceChildren();
    html(this.description, "b", {}, `Step ${step} of ${this.last}`);
    this.description.append(text);
    this.range.max = this.last;
    this.range.value = step;
    this.range.setAttribute("aria-valuetext", `step ${step} of ${this.last}, ${spoken}`);
  }

  play() {
    this.stop();
    if (this.step >= this.last) this.show(0);
    this.button.textContent = "❚❚ Pause";
    this.timer = setInterval(() => {
      this.show(this.step + 1);
      if (this.step >= this.last) this.stop();
    }, Number(this.speed.value));
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "▶ Play";
  }
}
