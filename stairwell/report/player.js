// What is stepped through: a button, a slider, a choice of speed and a line of words. Who extends it gives `last`, the number of
// the last step, and `show(step)`, which draws a step and returns { words, spoken }: what happened, and what a screen reader says.
class Player {
  constructor(root, label) {
    this.timer = null;
    const bar = html(root, "div", { class: "controls" });
    this.button = html(bar, "button", { type: "button", class: "play" }, "▶ Play");
    this.button.addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    this.range = html(bar, "input", { type: "range", min: 0, step: 1, "aria-label": label });
    this.range.addEventListener("input", () => this.jump(Number(this.range.value)));
    this.options = html(bar, "div", { class: "options" });
    this.speed = html(this.options, "select", { "aria-label": "speed" });
    for (const [name, pause] of [["slow", 900], ["normal", 450], ["fast", 150]]) html(this.speed, "option", { value: pause }, name);
    this.speed.value = 450;
    this.speed.addEventListener("change", () => { if (this.timer) this.play(); });
    this.words = html(bar, "div", { class: "happened" });
    root.addEventListener("keydown", (event) => this.key(event));
  }

  // The slider has its own keys, and a button its space bar; elsewhere in the section the same ones do the same.
  key(event) {
    const at = event.target, space = event.key === " ";
    if (at.closest("select") || (space ? at.closest("button") : at === this.range)) return;
    const wanted = { ArrowRight: this.step + 1, ArrowLeft: this.step - 1, Home: 0, End: this.last }[event.key];
    if (space) this.button.click();
    else if (wanted !== undefined) this.jump(Math.min(this.last, Math.max(0, wanted)));
    else return;
    event.preventDefault();
  }

  jump(step) {
    this.stop();
    this.go(step);
  }

  go(step) {
    this.step = step;
    const { words, spoken } = this.show(step);
    this.words.replaceChildren();
    html(this.words, "b", {}, `Step ${step} of ${this.last}`);
    this.words.append(words);
    this.range.max = this.last;
    this.range.value = step;
    this.range.setAttribute("aria-valuetext", `step ${step} of ${this.last}, ${spoken}`);
  }

  play() {
    this.stop();
    if (this.step >= this.last) this.go(0);
    this.button.textContent = "❚❚ Pause";
    this.timer = setInterval(() => {
      this.go(this.step + 1);
      if (this.step >= this.last) this.stop();
    }, Number(this.speed.value));
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "▶ Play";
  }
}
