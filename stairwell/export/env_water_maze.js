// Water Maze: stairwell/rl/environments/water_maze.py. Actions are east, north, west, south.
class WaterMaze extends Environment {
  constructor(config, seed) {
    super(config, seed, 2 + config.side ** 2);
  }

  start([goal, cell, ...labels]) {
    this.goal = randomInteger(goal, this.config.side ** 2);
    this.cell = this.randomCellExceptGoal(cell);
    this.labels = randomPermutation(labels);
  }

  randomCellExceptGoal(random) {
    const cells = this.config.side ** 2;
    return (this.goal + 1 + randomInteger(random, cells - 1)) % cells;
  }

  coordinates(cell) { return [Math.floor(cell / this.config.side), cell % this.config.side]; }

  apply(action) {
    const { side } = this.config, inside = (x) => Math.min(side - 1, Math.max(0, x));
    const [row, column] = this.coordinates(this.cell), [south, east] = [[0, 1], [-1, 0], [0, -1], [1, 0]][action];
    this.cell = inside(row + south) * side + inside(column + east);
    const reached = this.cell === this.goal;
    if (reached) this.cell = this.randomCellExceptGoal(this.random(1)[0]);
    return { reward: Number(reached), terminated: false };
  }

  isNear(cell) {
    const [row, column] = this.coordinates(cell), [y, x] = this.coordinates(this.cell);
    return Math.abs(row - y) <= 1 && Math.abs(column - x) <= 1;
  }

  observe() { return [this.labels[this.cell], this.labels[this.goal], Number(this.isNear(this.goal))]; }

  // For drawing: the pool from above, with an edge.
  get rows() { return this.config.side + 2; }
  get columns() { return this.config.side + 2; }
  get place() { return this.cell; }
  get heading() { return null; }
  get target() { return null; }

  tileOf(cell) {
    const [row, column] = this.coordinates(cell);
    return (row + 1) * this.columns + column + 1;
  }

  tiles() {
    const tiles = Array.from({ length: this.rows * this.columns }, () => ({ type: "wall" }));
    this.labels.forEach((label, cell) => {
      const type = cell === this.goal ? "goal" : "water";
      tiles[this.tileOf(cell)] = { type, shade: label / this.labels.length, visible: this.isNear(cell) };
    });
    return tiles;
  }

  describe() {
    const [row, column] = this.coordinates(this.cell);
    return `row ${row + 1}, column ${column + 1}${this.isNear(this.goal) ? ", the goal is near" : ""}`;
  }
}
