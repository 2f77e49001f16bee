// Maze Navigation and Maze Navigation Easy: stairwell/rl/environments/maze.py and grid.py. Directions are east, north,
// west, south.
const MAZE = { free: 0, wall: 1, object: 2 }; // an object of color c is object + c
const DIRECTIONS = ["east", "north", "west", "south"];
const moveOffsets = (width) => [1, -width, -1, width];

// Rooms and the blocks between them: cells of the maze, and the rooms on both sides of each block.
function mazeLayout(side) {
  const perRow = (side + 1) / 2, rooms = [], blocks = [], ends = [];
  for (let room = 0; room < perRow ** 2; room++) {
    const row = 2 * Math.floor(room / perRow), column = 2 * (room % perRow);
    rooms.push(row * side + column);
    for (const [south, east] of [[0, 1], [1, 0]]) {
      if (row + 2 * south >= side || column + 2 * east >= side) continue;
      blocks.push((row + south) * side + column + east);
      ends.push([room, room + south * perRow + east]);
    }
  }
  const blocksOfRoom = rooms.map((_, room) => ends.flatMap((pair, block) => (pair.includes(room) ? [block] : [])));
  return { rooms, blocks, ends, blocksOfRoom };
}

// Kruskal's algorithm: open the blocks in this order whose rooms are not connected yet.
function spanningTree({ rooms, blocks, ends }, order) {
  let component = rooms.map((_, room) => room);
  const opened = blocks.map(() => false);
  for (const block of order) {
    const [first, second] = ends[block].map((room) => component[room]);
    opened[block] = first !== second;
    component = component.map((number) => (number === second ? first : number));
  }
  return opened;
}

// Open a closed block of each room with one open side.
function openDeadEnds({ blocksOfRoom }, opened, random) {
  blocksOfRoom.forEach((blocks, room) => {
    const closed = blocks.filter((block) => !opened[block]);
    if (closed.length === blocks.length - 1) opened[closed[randomInteger(random[room], closed.length)]] = true;
  });
}

class Maze extends Environment {
  constructor(config, seed) {
    const layout = mazeLayout(config.side);
    super(config, seed, 2 + layout.blocks.length + layout.rooms.length + config.side ** 2);
    this.layout = layout;
    this.width = config.side + 2;
    this.moves = moveOffsets(this.width);
  }

  start([direction, target, ...random]) {
    const { layout, width } = this, { side, targets, easy } = this.config;
    const W = layout.blocks.length, R = layout.rooms.length;
    const opened = spanningTree(layout, randomPermutation(random.slice(0, W)));
    openDeadEnds(layout, opened, random.slice(W, W + R));
    const maze = Array(side ** 2).fill(MAZE.wall);
    for (const room of layout.rooms) maze[room] = MAZE.free;
    layout.blocks.forEach((block, i) => { if (opened[i]) maze[block] = MAZE.free; });
    // Walls come last in a random order of cells. Objects take the first cells, the agent takes the next.
    const priority = random.slice(W + R).map((number, cell) => (maze[cell] === MAZE.free ? number >> 1n : 2n ** 64n - 1n));
    const taken = randomPermutation(priority);
    for (let color = 0; color < targets; color++) maze[taken[color]] = MAZE.object + color;
    const inside = (cell) => (Math.floor(cell / side) + 1) * width + (cell % side) + 1;
    this.cells = Array(width ** 2).fill(MAZE.wall);
    maze.forEach((content, cell) => { this.cells[inside(cell)] = content; });
    this.cell = inside(taken[targets]);
    this.direction = easy ? DIRECTIONS.indexOf("north") : randomInteger(direction, 4);
    this.target = randomInteger(target, targets);
  }

  apply(action) {
    const { targets } = this.config;
    this.move(action);
    const reached = this.cells[this.cell] === MAZE.object + this.target;
    if (reached) this.target = (this.target + 1 + randomInteger(this.random(1)[0], targets - 1)) % targets;
    return { reward: Number(reached), terminated: false };
  }

  // Actions are one per direction in the easy maze, otherwise forward, left and right.
  move(action) {
    if (!this.config.easy) this.direction = (this.direction + [0, 1, 3][action]) % 4;
    if (!this.config.easy && action !== 0) return;
    const ahead = this.cell + this.moves[this.config.easy ? action : this.direction];
    if (this.cells[ahead] !== MAZE.wall) this.cell = ahead;
  }

  // The 3x3 cells around the agent; the top row is ahead of it.
  view() {
    const ahead = this.moves[this.direction], right = this.moves[(this.direction + 3) % 4];
    return [1, 0, -1].flatMap((up) => [-1, 0, 1].map((side) => this.cell + up * ahead + side * right));
  }

  observe() { return [...this.view().map((cell) => this.cells[cell]), this.target]; }

  // For drawing: the maze from above.
  get rows() { return this.width; }
  get columns() { return this.width; }
  get place() { return this.cell; }
  get heading() { return this.config.easy ? null : this.direction; }
  tileOf(cell) { return cell; }

  tiles() {
    const visible = new Set(this.view());
    return this.cells.map((content, cell) => ({
      type: content === MAZE.wall ? "wall" : "floor", visible: visible.has(cell),
      object: content >= MAZE.object ? content - MAZE.object : undefined, ring: content === MAZE.object + this.target,
    }));
  }

  describe() {
    const facing = this.config.easy ? "" : `, facing ${DIRECTIONS[this.direction]}`;
    return `row ${Math.floor(this.cell / this.width)}, column ${this.cell % this.width}${facing}, target color ${this.target + 1}`;
  }
}
