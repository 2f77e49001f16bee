// An agent that plays one of stairwell's environments, with its own actions or those of a person.

// The action whose cumulative probability is the first above u, as Categorical.sample of stairwell/rl/distributions.py.
function sampleAction(policy, u) {
  const probabilities = softmax(policy);
  let action = 0, below = 0, last = probabilities.length - 1;
  while (probabilities[last] === 0) last -= 1;
  while (action < last && (below += probabilities[action]) <= Math.fround(u)) action += 1;
  return action;
}

const ENVIRONMENTS = { "corridor": Corridor, "maze": Maze, "water-maze": WaterMaze };

// An agent in an environment of this page. An action is the agent's own or someone else's: the agent observes it.
class AgentPlay {
  constructor(engine, config) {
    Object.assign(this, { engine, config });
  }

  restart(seed) {
    this.seed = seed;
    this.env = new ENVIRONMENTS[this.config.type](this.config, seed);
    this.steps = 0; // of all episodes
    this.startEpisode();
  }

  startEpisode() {
    this.engine.reset();
    this.places = [];
    this.return = 0;
    this.done = false;
    this.read({ observation: this.env.reset(), lastAction: 0, lastReward: 0 });
  }

  read(inputs) {
    this.inputs = inputs;
    this.places.push(this.env.place);
    this.output = this.engine.step(inputs, true);
  }

  // The agent's own action: sampled with the same random numbers as in `stairwell play`, or the most probable one.
  choose(deterministic) {
    const { policy } = this.output;
    return deterministic ? policy.indexOf(Math.max(...policy)) : sampleAction(policy, uniform(this.seed, this.steps, 1)[0]);
  }

  act(action) {
    const { observation, reward, terminated, truncated } = this.env.step(action);
    this.steps += 1;
    this.return += reward;
    this.lastAction = action;
    this.lastReward = reward;
    this.done = terminated || truncated;
    if (!this.done) this.read({ observation, lastAction: action, lastReward: reward });
    return { reward, terminated, truncated };
  }

  // The attention to the frames of the episode, averaged over heads and layers, by place.
  attentionByPlace() {
    const weights = new Map(), layers = this.output.attention, now = this.places.length - 1;
    for (const { first, heads, weights: rows } of layers) {
      for (const row of rows) {
        row.forEach((weight, j) => {
          const place = this.places[now - first - j];
          if (weight) weights.set(place, (weights.get(place) ?? 0) + weight / heads / layers.length);
        });
      }
    }
    return weights;
  }
}
