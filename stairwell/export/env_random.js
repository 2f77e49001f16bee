// Random numbers and episodes of stairwell/rl/environments/batched_env.py: the same seed gives the same episodes. Random
// numbers are a hash (SplitMix64) of the seed, the episode and how many the episode has used.
const uint64 = (number) => BigInt.asUintN(64, number);

function scramble(x) {
  x = uint64((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
  x = uint64((x ^ (x >> 27n)) * 0x94d049bb133111ebn);
  return x ^ (x >> 31n);
}

const hash64 = (key, number) => scramble(uint64(key + scramble(uint64((BigInt(number) + 1n) * 0x9e3779b97f4a7c15n))));

// The key of the first environment of a seed.
const seedKey = (seed) => hash64(BigInt(seed), 0);

// `count` numbers in [0, 1) for sampling the action of a step.
function uniform(seed, step, count) {
  const key = hash64(hash64(seedKey(seed), 2n ** 63n), step);
  return Array.from({ length: count }, (_, i) => Number(hash64(key, i) >> 11n) * 2 ** -53);
}

// 0 .. high - 1
const randomInteger = (random, high) => Number(((random >> 32n) * BigInt(high)) >> 32n);

const randomPermutation = (random) => (
  random.map((_, i) => i).sort((i, j) => (random[i] < random[j] ? -1 : random[i] > random[j] ? 1 : i - j))
);

// One environment. Subclasses define `start(random)`, which sets the initial state, `apply(action)`, which returns
// { reward, terminated }, and `observe()`.
class Environment {
  constructor(config, seed, randomCount) {
    Object.assign(this, { config, resetRandomCount: randomCount, key: seedKey(seed), episode: -1 });
  }

  reset() {
    this.episode += 1;
    this.elapsedSteps = 0;
    this.randomCount = 0;
    this.start(this.random(this.resetRandomCount));
    return this.observe();
  }

  step(action) {
    this.elapsedSteps += 1;
    const { reward, terminated } = this.apply(action);
    const truncated = this.elapsedSteps >= this.config.max_steps && !terminated;
    return { observation: this.observe(), reward, terminated, truncated };
  }

  random(count) {
    const key = hash64(this.key, this.episode), first = this.randomCount;
    this.randomCount += count;
    return Array.from({ length: count }, (_, i) => hash64(key, first + i));
  }
}
