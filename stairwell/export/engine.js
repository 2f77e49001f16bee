// A trained model, one token at a time. Mirrors stairwell/decode: keys and values of the past stay in rings, and a core
// says which slots a token sees. Parameters are float32 as they were trained; what is computed from them is float64.
//
//   const engine = new Engine(header, parameters);      what stairwell/export/pack.py packs
//   const { logits, attention } = engine.step(token, true);
//
// attention is one entry a layer (a layer and pass, where there are passes): { heads, first, weights }, weights one row
// a head by distance, the nearest slot (at distance `first`) first.
// Letters: S memory slots, D width, H heads, K head width, L layers, C chunk, N passes, M computed passes, G memories.

// y = W x + b for W (rows, columns) as it lies in torch.
function linear(weight, bias, x, y) {
  const columns = x.length, rows = y.length;
  for (let i = 0, w = 0; i < rows; i++) {
    // Two sums at once: one alone waits for each of its additions.
    let even = bias ? bias[i] : 0, odd = 0, j = 0;
    for (; j + 1 < columns; j += 2, w += 2) {
      even += weight[w] * x[j];
      odd += weight[w + 1] * x[j + 1];
    }
    if (j < columns) even += weight[w++] * x[j];
    y[i] = even + odd;
  }
  return y;
}

function softmax(scores) {
  const powers = new Float64Array(scores.length);
  let highest = -Infinity, total = 0;
  for (let i = 0; i < powers.length; i++) highest = Math.max(highest, scores[i]);
  for (let i = 0; i < powers.length; i++) total += powers[i] = Math.exp(scores[i] - highest);
  for (let i = 0; i < powers.length; i++) powers[i] /= total;
  return powers;
}

class Norm {
  constructor(parameters, name) {
    this.weight = parameters(`${name}.weight`);
    this.bias = parameters(`${name}.bias`);
    this.y = new Float64Array(this.weight.length);
  }

  // Into a buffer of its own, which the next call overwrites; y may be x itself.
  apply(x, y = this.y) {
    const D = x.length;
    let mean = 0, variance = 0;
    for (let i = 0; i < D; i++) mean += x[i] / D;
    for (let i = 0; i < D; i++) variance += (x[i] - mean) ** 2 / D;
    const scale = 1 / Math.sqrt(variance + 1e-5);
    for (let i = 0; i < D; i++) y[i] = (x[i] - mean) * scale * this.weight[i] + this.bias[i];
    return y;
  }
}

// Keys and values of the last `slots` tokens and, at the hand, of the present one. Without a limit it grows.
class Ring {
  constructor(slots, width) {
    this.grows = slots === Infinity;
    this.width = width;
    this.size = this.grows ? 64 : slots + 1;
    this.keys = new Float64Array(this.size * width);
    this.values = new Float64Array(this.size * width);
    this.hand = 0;
  }

  key() { return this.keys.subarray(this.hand * this.width, (this.hand + 1) * this.width); }
  value() { return this.values.subarray(this.hand * this.width, (this.hand + 1) * this.width); }

  turn() {
    if (this.grows && this.hand + 1 === this.size) {
      this.size *= 2;
      for (const name of ["keys", "values"]) {
        const grown = new Float64Array(this.size * this.width);
        grown.set(this[name]);
        this[name] = grown;
      }
    }
    this.hand = (this.hand + 1) % this.size;
  }

  // Where a slot begins: the present token for -1, the one before it for 0.
  at(back) {
    const slot = this.hand - 1 - back;
    return (slot < 0 ? slot + this.size : slot) * this.width;
  }
}

class Layer {
  constructor(parameters, name, config, position) {
    Object.assign(this, { H: config.heads, K: config.K, first: config.first, ramp: config.span_ramp, position });
    this.pre = config.norm === "pre";
    const weights = (part, optional) => parameters(`${name}.${part}`, optional);
    this.attentionNorm = new Norm(parameters, `${name}.attention_norm`);
    this.feedForwardNorm = new Norm(parameters, `${name}.feed_forward_norm`);
    this.query = weights("attention.query.weight");
    this.keys = weights("attention.key.weight", true);
    this.values = weights("attention.value.weight", true);
    this.out = weights("attention.out.weight");
    this.inner = weights("feed_forward.inner.weight");
    this.innerBias = weights("feed_forward.inner.bias");
    this.outer = weights("feed_forward.out.weight");
    this.outerBias = weights("feed_forward.out.bias");
    this.span = config.adaptive_span ? Float64Array.from(weights("span.ratio"), (r) => r * config.longest_span) : null;
    const width = this.H * this.K;
    this.q = new Float64Array(width);
    this.read = new Float64Array(width);
    this.z = new Float64Array(config.width);
    this.active = new Float64Array(this.innerBias.length);
    this.scores = new Float64Array(64);
  }

  // Keys and values of raw memory, at the ring's hand.
  write(ring, memory) {
    const x = this.pre ? this.attentionNorm.apply(memory) : memory;
    linear(this.keys, null, x, ring.key());
    linear(this.values, null, x, ring.value());
  }

  // x through the layer, in place. `sight` is what it attends to, the nearest first: [ring, near, far] for the slots
  // from near to far (not included) back, -1 for the token itself. Returns the attention if it is asked for.
  apply(x, sight, look) {
    linear(this.query, null, this.pre ? this.attentionNorm.apply(x) : x, this.q);
    const attention = this.attend(sight, look);
    linear(this.out, null, this.read, this.z);
    for (let i = 0; i < x.length; i++) x[i] += this.z[i];
    if (!this.pre) this.attentionNorm.apply(x, x);
    linear(this.inner, this.innerBias, this.pre ? this.feedForwardNorm.apply(x) : x, this.active);
    for (let i = 0; i < this.active.length; i++) if (this.active[i] < 0) this.active[i] = 0;
    linear(this.outer, this.outerBias, this.active, this.z);
    for (let i = 0; i < x.length; i++) x[i] += this.z[i];
    if (!this.pre) this.feedForwardNorm.apply(x, x);
    return attention;
  }

  attend(sight, look) {
    const { H, K } = this;
    const slots = sight.reduce((sum, [, near, far]) => sum + Math.max(far - near, 0), 0);
    if (slots > this.scores.length) this.scores = new Float64Array(2 * slots);
    const attention = look ? { heads: H, first: this.first, weights: [] } : null;
    this.read.fill(0);
    for (let h = 0; h < H; h++) {
      const total = this.score(h * K, sight, this.span ? this.span[h] : null);
      // With nothing in sight nothing is read.
      if (total > 0) this.gather(h * K, sight, slots, total);
      if (look) attention.weights.push(Float32Array.from(this.scores.subarray(0, slots)));
    }
    return attention;
  }

  // The power of each slot, not yet divided by their sum, which is returned.
  score(head, sight, span) {
    const { K, q, scores, position } = this;
    const last = position.length - K, scale = 1 / Math.sqrt(K);
    let highest = -Infinity, j = 0;
    for (const [ring, near, far] of sight) {
      const keys = ring.keys;
      for (let back = near; back < far; back++, j++) {
        const p = Math.min(j * K, last);
        if (span !== null && j >= span + this.ramp) {
          scores[j] = -Infinity;
          continue;
        }
        let score = 0;
        for (let i = 0, k = ring.at(back) + head; i < K; i++) score += q[head + i] * (keys[k + i] + position[p + i]);
        scores[j] = score * scale;
        if (scores[j] > highest) highest = scores[j];
      }
    }
    let total = 0;
    for (let i = 0; i < j; i++) {
      const fade = span === null ? 1 : Math.min(1, Math.max(0, 1 - (i - span) / this.ramp));
      scores[i] = fade > 0 ? fade * Math.exp(scores[i] - highest) : 0;
      total += scores[i];
    }
    return total;
  }

  // Scores become weights, and the values are read by them.
  gather(head, sight, slots, total) {
    const { K, read, scores } = this;
    for (let i = 0; i < slots; i++) scores[i] /= total;
    let j = 0;
    for (const [ring, near, far] of sight) {
      const values = ring.values;
      for (let back = near; back < far; back++, j++) {
        const weight = scores[j];
        if (weight === 0) continue;
        for (let i = 0, v = ring.at(back) + head; i < K; i++) read[head + i] += weight * values[v + i];
      }
    }
  }
}

const layersOf = (parameters, config) => {
  const position = parameters("core.position.vectors");
  return Array.from({ length: config.layers }, (_, l) => new Layer(parameters, `core.layers.${l}`, config, position));
};

// Every layer reads one memory of past thoughts; m_t is a mix of all layers.
class Feedback {
  constructor(parameters, config) {
    this.config = config;
    this.layers = layersOf(parameters, config);
    this.mix = Feedback.mixOf(parameters("core.mix.weights", true), config);
    const one = config.share_kv && this.mix.length === 1;
    this.width = config.heads * config.K;
    this.count = one ? 1 : config.layers;
    this.levels = Array.from({ length: config.layers + 1 }, () => new Float64Array(config.width));
    this.made = new Float64Array(config.width);
  }

  // How much of each layer, from the embedding to the top, goes into each memory.
  static mixOf(weights, { memory_composition, layers }) {
    const G = memory_composition === "recurrent" ? layers : 1;
    return Array.from({ length: G }, (_, g) => softmax(Array.from({ length: layers + 1 }, (_, l) => {
      const allowed = memory_composition === "recurrent" ? l <= g + 1 : typeof memory_composition !== "number" || l === memory_composition;
      return !allowed ? -Infinity : weights ? weights[g * (layers + 1) + l] : 0;
    })));
  }

  reset() {
    this.rings = Array.from({ length: this.count }, () => new Ring(this.config.memory, this.width));
  }

  projecting(l) { return this.layers[this.config.share_kv ? 0 : l]; }

  step(x, age, look) {
    const { levels, layers, rings, made } = this, attention = [];
    const nearest = this.config.attend_to_current ? -1 : 0, far = Math.min(age, this.config.memory);
    levels[0].set(x);
    layers.forEach((layer, l) => {
      const ring = rings[Math.min(l, this.count - 1)];
      // Its own key and value stand where those of m_t will.
      if (this.config.attend_to_current) this.projecting(l).write(ring, levels[l]);
      levels[l + 1].set(levels[l]);
      attention.push(layer.apply(levels[l + 1], [[ring, nearest, far]], look));
    });
    rings.forEach((ring, l) => {
      const mix = this.mix[Math.min(l, this.mix.length - 1)];
      made.fill(0);
      mix.forEach((weight, level) => { for (let i = 0; i < made.length; i++) made[i] += weight * levels[level][i]; });
      this.projecting(l).write(ring, made);
      ring.turn();
    });
    x.set(levels[layers.length]);
    return attention;
  }
}

// Each layer reads the inputs that it had itself; a pass of a Universal Transformer is one more layer.
class TransformerXL {
  constructor(parameters, config) {
    this.config = config;
    const layers = layersOf(parameters, config);
    this.stack = Array.from({ length: layers.length * (config.passes ?? 1) }, (_, i) => layers[i % layers.length]);
  }

  reset() {
    this.rings = this.stack.map((layer) => new Ring(this.config.memory, layer.H * layer.K));
  }

  step(x, age, look) {
    const near = this.config.attend_to_current ? -1 : 0, far = Math.min(age, this.config.memory);
    return this.stack.map((layer, l) => {
      layer.write(this.rings[l], x);
      const attention = layer.apply(x, [[this.rings[l], near, far]], look);
      this.rings[l].turn();
      return attention;
    });
  }
}

// Chunks climb through the same layers: at pass n a token sees chunk i-d as it was at pass n+d, from the cache where
// that pass is not computed.
class Staircase {
  constructor(parameters, config) {
    this.config = config;
    this.layers = layersOf(parameters, config);
    this.N = config.name === "global-cached-staircase" ? Infinity : config.passes;
    this.M = config.compute ?? this.N;
    this.computed = Math.max(this.M, 1);
  }

  reset() {
    const { N, M, layers, config } = this, C = config.chunk;
    const rings = (slots) => layers.map((layer) => new Ring(slots, layer.H * layer.K));
    this.past = Array.from({ length: this.computed }, (_, n) => rings((n + 1) * C - 1));
    this.cache = M < N ? rings(N * C - 1) : [];
  }

  step(x, age, look) {
    const attention = [];
    let cached = this.M === 0 ? x.slice() : null;
    for (let n = 1; n <= this.computed; n++) {
      this.layers.forEach((layer, l) => {
        layer.write(this.past[n - 1][l], x);
        attention.push(layer.apply(x, this.sight(l, n, age), look));
      });
      if (n === this.M) cached = x;
    }
    this.cache.forEach((ring, l) => this.layers[l].write(ring, cached));
    for (const rings of [...this.past, this.cache]) for (const ring of rings) ring.turn();
    return attention;
  }

  sight(l, n, age) {
    const { N, M } = this, C = this.config.chunk, phase = age % C;
    const begin = (d) => (d === 0 ? -1 : phase + (d - 1) * C), end = (d) => Math.min(phase + d * C, age);
    const firstCached = Math.max(M - n + 1, 1), sight = [];
    for (let d = 0; d <= Math.min(firstCached - 1, N - n); d++) sight.push([this.past[n + d - 1][l], begin(d), end(d)]);
    if (this.cache.length) sight.push([this.cache[l], begin(firstCached), end(N - n)]);
    return sight.filter(([, near, far]) => near < far);
  }
}

class LSTM {
  constructor(parameters, config) {
    this.config = config;
    this.gates = new Float64Array(4 * config.width);
    this.recurrent = new Float64Array(4 * config.width);
    this.layers = Array.from({ length: config.layers }, (_, l) => (
      ["weight_ih", "weight_hh", "bias_ih", "bias_hh"].map((part) => parameters(`core.lstm.${part}_l${l}`))
    ));
  }

  reset() {
    [this.hidden, this.cell] = [0, 0].map(() => this.layers.map(() => new Float64Array(this.config.width)));
  }

  step(x) {
    const D = x.length, { gates, recurrent } = this;
    const open = (i) => 1 / (1 + Math.exp(-gates[i] - recurrent[i]));
    this.layers.forEach(([input, hidden, inputBias, hiddenBias], l) => {
      const h = this.hidden[l], c = this.cell[l];
      linear(input, inputBias, x, gates);
      linear(hidden, hiddenBias, h, recurrent);
      for (let i = 0; i < D; i++) {
        c[i] = open(D + i) * c[i] + open(i) * Math.tanh(gates[2 * D + i] + recurrent[2 * D + i]);
        h[i] = open(3 * D + i) * Math.tanh(c[i]);
      }
      x.set(h);
    });
    return [];
  }
}

// A matrix a head, which every token corrects: what it holds at a key moves to a value.
class DeltaNet {
  constructor(parameters, config) {
    const { width: D, layers, heads: H, K, products: n } = config;
    this.config = config;
    this.layers = Array.from({ length: layers }, (_, l) => {
      const part = (name, optional) => parameters(`core.layers.${l}.${name}`, optional);
      return {
        mixNorm: new Norm(parameters, `core.layers.${l}.mix_norm`),
        feedForwardNorm: new Norm(parameters, `core.layers.${l}.feed_forward_norm`),
        query: part("query.weight"), key: part("key.weight"), value: part("value.weight"),
        strength: part("strength.weight"), keep: part("keep.weight", true), keepBias: part("keep.bias", true),
        headNorm: part("head_norm.weight"), out: part("out.weight"),
        inner: part("feed_forward.0.weight"), innerBias: part("feed_forward.0.bias"),
        outer: part("feed_forward.2.weight"), outerBias: part("feed_forward.2.bias"),
      };
    });
    const room = (size) => new Float64Array(size);
    this.q = room(H * K); this.k = room(n * H * K); this.v = room(n * H * K); this.b = room(n * H); this.a = room(H);
    this.read = room(H * K); this.z = room(D); this.active = room(this.layers[0].innerBias.length); this.held = room(K);
  }

  reset() {
    const { heads, K } = this.config;
    this.matrices = this.layers.map(() => new Float64Array(heads * K * K));
  }

  step(x) {
    this.layers.forEach((layer, l) => {
      this.project(layer, layer.mixNorm.apply(x));
      for (let h = 0; h < this.config.heads; h++) this.correct(layer, this.matrices[l], h);
      linear(layer.out, null, this.read, this.z);
      for (let i = 0; i < x.length; i++) x[i] += this.z[i];
      linear(layer.inner, layer.innerBias, layer.feedForwardNorm.apply(x), this.active);
      for (let i = 0; i < this.active.length; i++) if (this.active[i] < 0) this.active[i] = 0;
      linear(layer.outer, layer.outerBias, this.active, this.z);
      for (let i = 0; i < x.length; i++) x[i] += this.z[i];
    });
    return [];
  }

  // All that does not depend on the matrices; queries and keys have length 1.
  project(layer, u) {
    const { K, negative_eigenvalues: negative } = this.config, sigmoid = (y) => 1 / (1 + Math.exp(-y));
    for (const [weight, y] of [[layer.query, this.q], [layer.key, this.k], [layer.value, this.v]]) {
      linear(weight, null, u, y);
      for (let i = 0; i < y.length; i++) y[i] *= sigmoid(y[i]);
    }
    for (const y of [this.q, this.k]) {
      for (let begin = 0; begin < y.length; begin += K) {
        let squares = 0;
        for (let i = begin; i < begin + K; i++) squares += y[i] * y[i];
        const length = Math.max(Math.sqrt(squares), 1e-12);
        for (let i = begin; i < begin + K; i++) y[i] /= length;
      }
    }
    linear(layer.strength, null, u, this.b);
    for (let i = 0; i < this.b.length; i++) this.b[i] = (negative ? 2 : 1) * sigmoid(this.b[i]);
    this.a.fill(1);
    if (layer.keep) linear(layer.keep, layer.keepBias, u, this.a).forEach((y, h) => { this.a[h] = sigmoid(y); });
  }

  // One head: forget, correct, read. Its matrix lies key by key, a row of values each.
  correct(layer, matrix, h) {
    const { heads: H, K, products } = this.config, { held, read } = this, begin = h * K * K;
    for (let i = begin; i < begin + K * K; i++) matrix[i] *= this.a[h];
    for (let n = 0; n < products; n++) {
      const at = (n * H + h) * K, b = this.b[n * H + h];
      held.fill(0);
      for (let i = 0; i < K; i++) for (let j = 0; j < K; j++) held[j] += this.k[at + i] * matrix[begin + i * K + j];
      for (let i = 0; i < K; i++) {
        for (let j = 0; j < K; j++) matrix[begin + i * K + j] += this.k[at + i] * b * (this.v[at + j] - held[j]);
      }
    }
    let squares = 0;
    for (let j = 0; j < K; j++) {
      let sum = 0;
      for (let i = 0; i < K; i++) sum += this.q[h * K + i] * matrix[begin + i * K + j];
      read[h * K + j] = sum;
      squares += sum * sum;
    }
    const scale = 1 / Math.sqrt(squares / K + 1e-5);
    for (let j = 0; j < K; j++) read[h * K + j] *= scale * layer.headNorm[j];
  }
}

const CORES = {
  "feedback": Feedback, "transformer-xl": TransformerXL, "universal": TransformerXL, "staircase": Staircase,
  "cached-staircase": Staircase, "global-cached-staircase": Staircase, "multi-vector-rnn": Staircase,
  "memory-network": Staircase, "lstm": LSTM, "deltanet": DeltaNet,
};

// Embed, core, head.
class Engine {
  constructor(header, values) {
    const parameters = (name, optional = false) => {
      const place = header.tensors[name];
      if (!place && !optional) throw new Error(`the file has no parameter ${name}`);
      return place ? values.subarray(place.offset, place.offset + place.size) : null;
    };
    this.core = new CORES[header.core.name](parameters, header.core);
    this.embedding = parameters("embedding.vectors");
    this.startEmbedding = parameters("start_embedding.vector", true);
    this.norm = header.tensors["norm.weight"] ? new Norm(parameters, "norm") : null;
    this.head = parameters("head.vectors", true) ?? this.embedding;
    this.bias = parameters("head.bias", true);
    this.x = new Float64Array(header.core.width);
    this.outputs = header.outputs;
    this.layerWeights = this.core.mix ?? null;
    this.reset();
  }

  // Forget everything: the next token is a row's first.
  reset() {
    this.age = 0;
    this.core.reset();
  }

  step(token, look = false) {
    const x = this.x, D = x.length, scale = Math.sqrt(D);
    for (let i = 0; i < D; i++) x[i] = this.embedding[token * D + i] * scale;
    if (this.age === 0 && this.startEmbedding) for (let i = 0; i < D; i++) x[i] += this.startEmbedding[i];
    const attention = this.core.step(x, this.age, look);
    this.age += 1;
    const logits = linear(this.head, this.bias, this.norm ? this.norm.apply(x) : x, new Float64Array(this.outputs));
    return { logits, attention: look ? attention : null };
  }
}

// The parameters as they lie in the page.
function decodeParameters(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  if (new Uint8Array(Uint16Array.of(1).buffer)[0] === 1) return new Float32Array(bytes.buffer);
  // They are written little end first, whatever this machine does.
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

if (typeof module !== "undefined") module.exports = { Engine, decodeParameters, softmax };
