// Corridor and passive T-maze: stairwell/rl/environments/corridor.py.
class Corridor extends Environment {
  constructor(config, seed) {
    super(config, seed, 1 + config.colors);
  }

  start([color, ...doors]) {
    const { colors, shuffled } = this.config;
    this.color = randomInteger(color, colors);
    this.doors = shuffled ? randomPermutation(doors) : doors.map((_, i) => i);
    this.cell = 0;
  }

  apply(action) {
    const { length, penalty } = this.config;
    const terminated = action > 0 && this.cell === length;
    const correct = terminated && this.doors[action - 1] === this.color;
    if (action === 0) this.cell = Math.min(this.cell + 1, length);
    const behind = penalty && this.cell < this.elapsedSteps && this.elapsedSteps <= length;
    return { reward: Math.fround(correct - (behind ? Math.fround(penalty / length) : 0)), terminated };
  }

  observe() {
    const atDoors = this.cell === this.config.length;
    return [this.cell === 0 ? this.color + 1 : 0, ...this.doors.map((color) => (atDoors ? color + 1 : 0))];
  }

  // For drawing: the hallway from the object on the left to the doors on the right.
  get rows() { return this.config.colors + 2 + (this.config.colors % 2 === 0); }
  get columns() { return this.config.length + 5; }
  get place() { return this.cell; }
  get heading() { return 0; }
  get target() { return null; }
  tileOf(cell) { return Math.floor(this.rows / 2) * this.columns + cell + 2; }

  tiles() {
    const { rows, columns, cell } = this, { length, colors } = this.config, middle = Math.floor(rows / 2);
    const tiles = Array.from({ length: rows * columns }, () => ({ type: "wall" }));
    const at = (row, column) => tiles[row * columns + column];
    for (let column = 1; column < length + 3; column++) Object.assign(at(middle, column), { type: "floor", visible: cell === 0 && column < 3 });
    for (let row = 1; row < rows - 1; row++) Object.assign(at(row, length + 2), { type: "floor", visible: cell === length });
    at(middle, 1).object = this.color;
    const doorRows = Array.from({ length: rows - 2 }, (_, i) => i + 1).filter((row) => colors % 2 || row !== middle);
    doorRows.forEach((row, i) => Object.assign(at(row, length + 3), { type: "door", color: this.doors[i] }));
    return tiles;
  }

  describe() {
    const { length, colors } = this.config;
    if (this.cell === 0) return `at the object, which has color ${this.color + 1} of ${colors}`;
    return this.cell === length ? "in front of the doors" : `in the hallway, ${this.cell} of ${length} steps`;
  }
}
