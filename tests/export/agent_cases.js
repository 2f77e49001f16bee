// Run environments and agents of the page. Arguments: the folder of the scripts, and a JSON file with a list of cases:
// { environment, seed, actions } for an environment, or { environment, seed, steps, header, block } for an agent.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [, , folder, file] = process.argv;
for (const name of ["engine", "agent_engine", "env_random", "env_corridor", "env_maze", "env_water_maze", "agent_play"]) {
  vm.runInThisContext(fs.readFileSync(path.join(folder, `${name}.js`), "utf8"), name);
}
const environments = vm.runInThisContext("ENVIRONMENTS"), Play = vm.runInThisContext("AgentPlay");
const Engine = vm.runInThisContext("AgentEngine"), decode = vm.runInThisContext("decodeParameters");

function replay({ environment, seed, actions }) {
  const env = new environments[environment.type](environment, seed), frames = [{ observation: env.reset() }];
  for (const action of actions) {
    const frame = env.step(action);
    if (frame.terminated || frame.truncated) frame.observation = env.reset();
    frames.push(frame);
  }
  return frames;
}

function play({ environment, seed, steps, header, block }) {
  const agent = new Play(new Engine(header, decode(block)), environment), frames = [];
  agent.restart(seed);
  while (frames.length < steps) {
    const { policy, value, attention } = agent.output, action = agent.choose(false);
    const frame = { observation: agent.inputs.observation, start: agent.engine.position === 1, policy: [...policy], value, action };
    frame.attention = attention.map((layer) => layer.weights.map((row) => [...row]));
    frames.push({ ...frame, reward: agent.act(action).reward });
    if (agent.done) agent.startEpisode();
  }
  return frames;
}

const cases = JSON.parse(fs.readFileSync(file, "utf8"));
process.stdout.write(JSON.stringify(cases.map((one) => (one.actions ? replay(one) : play(one)))));
