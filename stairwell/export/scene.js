// An environment from above, as tiles: what the agent sees, where it is, and the attention to the places it remembers.
// A tile is { type, visible, object, ring, color, shade }, as `tiles()` of the environments returns it.
const MAX_COLUMNS = 17; // of a wide environment, such as a long corridor, only the part around the agent is shown

class Scene {
  constructor(parent, env, label) {
    this.label = label;
    this.columns = env.columns;
    this.shown = env.columns > 2 * env.rows ? Math.min(env.columns, MAX_COLUMNS) : env.columns;
    this.image = svg(parent, "svg", { class: "scene", role: "img" });
    this.tiles = Array.from({ length: env.rows * env.columns }, (_, tile) => {
      const square = { x: tile % env.columns, y: Math.floor(tile / env.columns), width: 1, height: 1 };
      const ground = svg(this.image, "rect", square);
      return { ground, heat: svg(this.image, "rect", { class: "heat", ...square }) };
    });
    this.overlay = svg(this.image, "g");
    this.agent = svg(this.image, "g");
    this.rows = env.rows;
  }

  center(tile) { return [(tile % this.columns) + 0.5, Math.floor(tile / this.columns) + 0.5]; }

  // `weights`: the attention by place.
  draw(env, weights, target) {
    const byTile = new Map([...weights].map(([place, weight]) => [env.tileOf(place), weight]));
    const highest = Math.max(...weights.values(), 1e-9), agentTile = env.tileOf(env.place);
    this.overlay.replaceChildren();
    env.tiles().forEach((tile, i) => {
      const { ground, heat } = this.tiles[i];
      ground.setAttribute("class", `tile ${tile.type}${tile.visible ? " visible" : ""}`);
      ground.setAttribute("style", tile.type === "door" ? `fill: ${data.colors[tile.color]}` : tile.shade === undefined ? "" : `--shade: ${(100 * tile.shade).toFixed(0)}%`);
      heat.setAttribute("fill-opacity", (0.85 * Math.sqrt((byTile.get(i) ?? 0) / highest)).toFixed(3));
      this.drawObject(tile, ...this.center(i));
    });
    this.drawAgent(env.heading, ...this.center(agentTile));
    const left = Math.min(this.columns - this.shown, Math.max(0, (agentTile % this.columns) - Math.floor(this.shown / 2)));
    this.image.setAttribute("viewBox", `${left} 0 ${this.shown} ${this.rows}`);
    this.image.setAttribute("aria-label", `${this.label}: ${env.describe()}${target}`);
  }

  drawObject({ object, ring }, cx, cy) {
    if (object !== undefined) svg(this.overlay, "circle", { cx, cy, r: 0.34, fill: data.colors[object] });
    if (ring) svg(this.overlay, "circle", { class: "ring", cx, cy, r: 0.43 });
  }

  drawAgent(heading, cx, cy) {
    this.agent.replaceChildren();
    if (heading === null) svg(this.agent, "circle", { class: "agent", cx, cy, r: 0.24 });
    else svg(this.agent, "path", { class: "agent", d: ARROW, transform: `translate(${cx} ${cy}) rotate(${ROTATIONS[heading]}) scale(1.1)` });
  }
}

// The attention and the agent along the whole hallway, of which the scene shows a part.
class HallwayStrip {
  constructor(parent, env) {
    this.image = svg(parent, "svg", { class: "hallway", viewBox: `0 0 ${env.config.length + 1} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.heat = Array.from({ length: env.config.length + 1 }, (_, x) => svg(this.image, "rect", { class: "heat", x, y: 0, width: 1, height: 1 }));
    this.cursor = svg(this.image, "rect", { class: "cursor", y: 0, width: 1, height: 1 });
  }

  draw(env, weights) {
    const highest = Math.max(...weights.values(), 1e-9);
    this.heat.forEach((rect, cell) => rect.setAttribute("fill-opacity", Math.sqrt((weights.get(cell) ?? 0) / highest).toFixed(3)));
    this.cursor.setAttribute("x", env.cell);
  }
}
