// An agent with discrete observations and actions, one frame at a time.
//
//   const engine = new AgentEngine(header, parameters);      as packed by stairwell/export/agent_page.py
//   const { policy, value, attention } = engine.step({ observation, lastAction, lastReward }, true);
//
// `policy` is the logits, `value` the expected discounted return in rewards of the environment.

// The sum of one embedding per integer, each one-hot feature normalized to mean 0.
class DiscreteEncoder {
  constructor(parameters, name, nvec) {
    this.weight = parameters(`${name}.weight`);
    this.mean = parameters(`${name}.mean`);
    this.scale = parameters(`${name}.scale`);
    this.offsets = nvec.map((_, i) => nvec.slice(0, i).reduce((sum, n) => sum + n, 0));
  }

  // Add the vector of the values (one integer each) to x.
  addTo(x, values) {
    const { weight, mean, scale, offsets } = this, D = x.length;
    if (!this.center) {
      this.center = new Float64Array(D);
      mean.forEach((share, v) => { for (let i = 0; i < D; i++) this.center[i] += share * scale[v] * weight[v * D + i]; });
    }
    values.forEach((value, element) => {
      const v = offsets[element] + value;
      for (let i = 0; i < D; i++) x[i] += scale[v] * weight[v * D + i];
    });
    for (let i = 0; i < D; i++) x[i] -= this.center[i];
  }
}

class AgentEngine {
  constructor(header, values) {
    const parameters = parameterLookup(header, values), { observation, action, last_action, last_reward, reward_scale } = header.agent;
    this.core = makeCore(parameters, header);
    this.encoder = new DiscreteEncoder(parameters, "encoders.0", observation);
    this.lastAction = last_action ? new DiscreteEncoder(parameters, "last_action", action) : null;
    this.lastReward = last_reward ? ["weight", "bias"].map((part) => parameters(`last_reward.${part}`)) : null;
    this.startEmbedding = parameters("start_embedding.vector", true);
    this.norm = header.tensors["norm.weight"] ? new Norm(parameters, "norm") : null;
    this.policy = ["weight", "bias"].map((part) => parameters(`policy.${part}`));
    this.value = ["weight", "bias"].map((part) => parameters(`value.${part}`));
    this.rewardScale = reward_scale;
    this.x = new Float64Array(header.core.width);
    this.layerWeights = this.core.mix ?? null;
    this.reset();
  }

  reset() {
    this.position = 0;
    this.core.reset();
  }

  // In the first frame of an episode, the last action and reward are ignored.
  step({ observation, lastAction, lastReward }, record = false) {
    const x = this.x.fill(0);
    this.encoder.addTo(x, observation);
    if (this.position > 0 && this.lastAction) this.lastAction.addTo(x, [lastAction]);
    if (this.position > 0 && this.lastReward) {
      const [weight, bias] = this.lastReward, compressed = Math.sign(lastReward) * Math.log2(1 + Math.abs(lastReward));
      for (let i = 0; i < x.length; i++) x[i] += weight[i] * compressed + bias[i];
    }
    if (this.position === 0 && this.startEmbedding) for (let i = 0; i < x.length; i++) x[i] += this.startEmbedding[i];
    const attention = this.core.step(x, this.position, record);
    this.position += 1;
    const y = this.norm ? this.norm.apply(x) : x;
    const policy = linear(...this.policy, y, new Float64Array(this.policy[1].length));
    const [value] = linear(...this.value, y, new Float64Array(1));
    return { policy, value: value * this.rewardScale, attention: record ? attention : null };
  }
}
