// Run a trained model one token at a time, like stairwell/decode: keys and values are kept in ring buffers, and a step
// description says what a token attends to. Parameters are float32; everything is computed in float64.
//
//   const engine = new Engine(header, parameters);      as packed by stairwell/export/pack.py
//   const { logits, attention } = engine.step(token, true);
//
// `attention` has one entry per layer and pass: { heads, first, weights }, with weights[head] by distance, nearest (at
// distance `first`) first.
// Letters: D width, H heads, K head width.

// y = W x + b, with W (rows, columns) in the order of PyTorch.
function linear(weight, bias, x, y) {
  const columns = x.length, rows = y.length;
  for (let i = 0, w = 0; i < rows; i++) {
    // Two independent sums are faster than one.
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
  const probabilities = new Float64Array(scores.length);
  let highest = -Infinity, total = 0;
  for (let i = 0; i < probabilities.length; i++) highest = Math.max(highest, scores[i]);
  for (let i = 0; i < probabilities.length; i++) total += probabilities[i] = Math.exp(scores[i] - highest);
  for (let i = 0; i < probabilities.length; i++) probabilities[i] /= total;
  return probabilities;
}

class Norm {
  constructor(parameters, name) {
    this.weight = parameters(`${name}.weight`);
    this.bias = parameters(`${name}.bias`);
    this.y = new Float64Array(this.weight.length);
  }

  // The default output is a buffer that the next call overwrites. y may be x.
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

// Keys and values of the last `slots` tokens and of the current one. With infinitely many slots, it grows.
class Ring {
  constructor(slots, width) {
    this.grows = slots === Infinity;
    this.width = width;
    this.size = this.grows ? 64 : slots + 1;
    this.keys = new Float64Array(this.size * width);
    this.values = new Float64Array(this.size * width);
    this.current = 0;
  }

  key() { return this.keys.subarray(this.current * this.width, (this.current + 1) * this.width); }
  value() { return this.values.subarray(this.current * this.width, (this.current + 1) * this.width); }

  advance() {
    if (this.grows && this.current + 1 === this.size) {
      this.size *= 2;
      for (const name of ["keys", "values"]) {
        const grown = new Float64Array(this.size * this.width);
        grown.set(this[name]);
        this[name] = grown;
      }
    }
    this.current = (this.current + 1) % this.size;
  }

  copy() {
    return Object.assign(Object.create(Ring.prototype), this, { keys: this.keys.slice(), values: this.values.slice() });
  }

  // The offset of the slot at a distance: 0 is the current token.
  offset(distance) {
    const slot = this.current - distance;
    return (slot < 0 ? slot + this.size : slot) * this.width;
  }
}

class Layer {
  constructor(parameters, name, config, position) {
    Object.assign(this, { H: config.heads, K: config.K, first: config.first, ramp: config.span_ramp, position });
    this.preNorm = config.norm === "pre";
    this.cross = null; // attention to a source, set by seq2seq_engine.js
    const parameter = (part, optional) => parameters(`${name}.${part}`, optional);
    this.attentionNorm = new Norm(parameters, `${name}.attention_norm`);
    this.feedForwardNorm = new Norm(parameters, `${name}.feed_forward_norm`);
    this.query = parameter("attention.query.weight");
    this.keys = parameter("attention.key.weight", true);
    this.values = parameter("attention.value.weight", true);
    this.out = parameter("attention.out.weight");
    this.inner = parameter("feed_forward.inner.weight");
    this.innerBias = parameter("feed_forward.inner.bias");
    this.outer = parameter("feed_forward.out.weight");
    this.outerBias = parameter("feed_forward.out.bias");
    this.span = config.adaptive_span ? Float64Array.from(parameter("span.ratio"), (ratio) => Math.min(Math.max(ratio, 0), 1) * config.longest_span) : null;
    const width = this.H * this.K;
    this.q = new Float64Array(width);
    this.output = new Float64Array(width);
    this.z = new Float64Array(config.width);
    this.hidden = new Float64Array(this.innerBias.length);
    this.scores = new Float64Array(64);
    this.indices = new Int32Array(64);
  }

  // Write the key and the value of a memory vector to the current slot.
  write(ring, memory) {
    const x = this.preNorm ? this.attentionNorm.apply(memory) : memory;
    linear(this.keys, null, x, ring.key());
    linear(this.values, null, x, ring.value());
  }

  // Apply the layer to x in place. `visible` is the slots it attends to: [ring, nearest, farthest] for a range of
  // distances. Returns the attention if `record` is true.
  apply(x, visible, record) {
    linear(this.query, null, this.preNorm ? this.attentionNorm.apply(x) : x, this.q);
    const attention = this.attend(visible, record);
    linear(this.out, null, this.output, this.z);
    for (let i = 0; i < x.length; i++) x[i] += this.z[i];
    if (!this.preNorm) this.attentionNorm.apply(x, x);
    if (this.cross) this.cross.addTo(x, attention);
    linear(this.inner, this.innerBias, this.preNorm ? this.feedForwardNorm.apply(x) : x, this.hidden);
    for (let i = 0; i < this.hidden.length; i++) if (this.hidden[i] < 0) this.hidden[i] = 0;
    linear(this.outer, this.outerBias, this.hidden, this.z);
    for (let i = 0; i < x.length; i++) x[i] += this.z[i];
    if (!this.preNorm) this.feedForwardNorm.apply(x, x);
    return attention;
  }

  attend(visible, record) {
    const { H, K } = this;
    const slots = visible.reduce((sum, [, nearest, farthest]) => sum + farthest - nearest + 1, 0);
    if (slots > this.scores.length) {
      this.scores = new Float64Array(2 * slots);
      this.indices = new Int32Array(2 * slots);
    }
    const shown = visible.reduce((most, [, , farthest]) => Math.max(most, farthest - this.first + 1), 0);
    const attention = record ? { heads: H, first: this.first, weights: [] } : null;
    this.output.fill(0);
    for (let h = 0; h < H; h++) {
      const total = this.score(h * K, visible, this.span ? this.span[h] : null);
      if (total > 0) this.readValues(h * K, visible, slots, total);
      if (record) {
        const weights = new Float32Array(shown);
        for (let j = 0; j < slots; j++) weights[this.indices[j]] += this.scores[j];
        attention.weights.push(weights);
      }
    }
    return attention;
  }

  // Compute the unnormalized attention weights of a head. Returns their sum. The index of a slot counts distances from
  // the nearest.
  score(head, visible, span) {
    const { K, q, scores, indices, position } = this;
    const last = position.length - K, scale = 1 / Math.sqrt(K);
    let highest = -Infinity, j = 0;
    for (const [ring, nearest, farthest] of visible) {
      const keys = ring.keys;
      for (let distance = nearest; distance <= farthest; distance++, j++) {
        indices[j] = distance - this.first;
        const p = Math.min(indices[j] * K, last);
        if (span !== null && indices[j] >= span + this.ramp) {
          scores[j] = -Infinity;
          continue;
        }
        let score = 0;
        for (let i = 0, k = ring.offset(distance) + head; i < K; i++) score += q[head + i] * (keys[k + i] + position[p + i]);
        scores[j] = score * scale;
        if (scores[j] > highest) highest = scores[j];
      }
    }
    let total = 0;
    for (let i = 0; i < j; i++) {
      const mask = span === null ? 1 : Math.min(1, Math.max(0, 1 - (indices[i] - span) / this.ramp));
      scores[i] = mask > 0 ? mask * Math.exp(scores[i] - highest) : 0;
      total += scores[i];
    }
    return total;
  }

  // Normalize the weights and sum the values.
  readValues(head, visible, slots, total) {
    const { K, output, scores } = this;
    for (let i = 0; i < slots; i++) scores[i] /= total;
    let j = 0;
    for (const [ring, nearest, farthest] of visible) {
      const values = ring.values;
      for (let distance = nearest; distance <= farthest; distance++, j++) {
        const weight = scores[j];
        if (weight === 0) continue;
        for (let i = 0, v = ring.offset(distance) + head; i < K; i++) output[head + i] += weight * values[v + i];
      }
    }
  }
}

const layersOf = (parameters, config) => {
  const position = parameters("core.position.vectors");
  return Array.from({ length: config.layers }, (_, l) => new Layer(parameters, `core.layers.${l}`, config, position));
};

// The nearest and the farthest distance of a read, for a token with `position` tokens before it: the rule of `Read` in
// stairwell/cores/step.py. There are none if the farthest is below the nearest.
function distances({ first, last, chunks }, position, chunk) {
  const phase = position % chunk;
  const nearest = !chunks ? first : first === 0 ? 0 : phase + (first - 1) * chunk + 1;
  const farthest = last === null ? position : chunks ? phase + last * chunk : last;
  return [nearest, Math.min(farthest, position)];
}

// Any transformer core, from its step description (stairwell/cores/step.py). Vector 0 is the input of a step, vector a the
// output of the a-th layer application; mixes follow.
class Transformer {
  constructor(parameters, config, description) {
    this.description = description;
    this.layers = layersOf(parameters, config);
    this.width = config.heads * config.K;
    this.mix = description.mix.length ? description.mix : null;
    const count = description.applications.length + 1 + description.mix.length;
    this.vectors = Array.from({ length: count }, () => new Float64Array(config.width));
  }

  reset() {
    this.state = this.description.buffers.map(({ farthest }) => new Ring(farthest ?? Infinity, this.width));
  }

  write(buffer, vector) {
    this.layers[this.description.buffers[buffer].layer].write(this.state[buffer], vector);
  }

  step(x, position, record) {
    const { vectors, state: rings } = this, { applications, buffers, mix, chunk } = this.description;
    vectors[0].set(x);
    const attention = applications.map(({ layer, write, reads }, a) => {
      if (write !== null) this.write(write, vectors[a]);
      const visible = reads.map((read) => [rings[read.buffer], ...distances(read, position, chunk)]);
      vectors[a + 1].set(vectors[a]);
      return this.layers[layer].apply(vectors[a + 1], visible.filter(([, nearest, farthest]) => nearest <= farthest), record);
    });
    mix.forEach((shares, g) => {
      const mixed = vectors[applications.length + 1 + g].fill(0);
      shares.forEach((share, v) => { for (let i = 0; i < mixed.length; i++) mixed[i] += share * vectors[v][i]; });
    });
    for (const buffer of this.description.final_writes) this.write(buffer, vectors[buffers[buffer].vector]);
    for (const ring of rings) ring.advance();
    x.set(vectors[applications.length]);
    return attention;
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
    this.state = [0, 0].map(() => this.layers.map(() => new Float64Array(this.config.width)));
  }

  step(x) {
    const D = x.length, { gates, recurrent, state: [hiddens, cells] } = this;
    const gate = (i) => 1 / (1 + Math.exp(-gates[i] - recurrent[i]));
    this.layers.forEach(([input, hidden, inputBias, hiddenBias], l) => {
      const h = hiddens[l], c = cells[l];
      linear(input, inputBias, x, gates);
      linear(hidden, hiddenBias, h, recurrent);
      for (let i = 0; i < D; i++) {
        c[i] = gate(D + i) * c[i] + gate(i) * Math.tanh(gates[2 * D + i] + recurrent[2 * D + i]);
        h[i] = gate(3 * D + i) * Math.tanh(c[i]);
      }
      x.set(h);
    });
    return [];
  }
}

// DeltaNet: a matrix per head. Each token moves the value stored at a key towards a new value.
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
    const buffer = (size) => new Float64Array(size);
    this.q = buffer(H * K); this.k = buffer(n * H * K); this.v = buffer(n * H * K); this.b = buffer(n * H); this.a = buffer(H);
    this.output = buffer(H * K); this.z = buffer(D); this.hidden = buffer(this.layers[0].innerBias.length); this.stored = buffer(K);
  }

  reset() {
    const { heads, K } = this.config;
    this.state = this.layers.map(() => new Float64Array(heads * K * K)); // one matrix per head
  }

  step(x) {
    this.layers.forEach((layer, l) => {
      this.project(layer, layer.mixNorm.apply(x));
      for (let h = 0; h < this.config.heads; h++) this.update(layer, this.state[l], h);
      linear(layer.out, null, this.output, this.z);
      for (let i = 0; i < x.length; i++) x[i] += this.z[i];
      linear(layer.inner, layer.innerBias, layer.feedForwardNorm.apply(x), this.hidden);
      for (let i = 0; i < this.hidden.length; i++) if (this.hidden[i] < 0) this.hidden[i] = 0;
      linear(layer.outer, layer.outerBias, this.hidden, this.z);
      for (let i = 0; i < x.length; i++) x[i] += this.z[i];
    });
    return [];
  }

  // Compute queries, keys, values and gates. Queries and keys are normalized.
  project(layer, u) {
    const { K, negative_eigenvalues: negative } = this.config, sigmoid = (y) => 1 / (1 + Math.exp(-y));
    for (const [weight, y] of [[layer.query, this.q], [layer.key, this.k], [layer.value, this.v]]) {
      linear(weight, null, u, y);
      for (let i = 0; i < y.length; i++) y[i] *= sigmoid(y[i]);
    }
    for (const y of [this.q, this.k]) {
      for (let head = 0; head < y.length; head += K) {
        let squares = 0;
        for (let i = head; i < head + K; i++) squares += y[i] * y[i];
        const length = Math.max(Math.sqrt(squares), 1e-12);
        for (let i = head; i < head + K; i++) y[i] /= length;
      }
    }
    linear(layer.strength, null, u, this.b);
    for (let i = 0; i < this.b.length; i++) this.b[i] = (negative ? 2 : 1) * sigmoid(this.b[i]);
    this.a.fill(1);
    if (layer.keep) linear(layer.keep, layer.keepBias, u, this.a).forEach((y, h) => { this.a[h] = sigmoid(y); });
  }

  // Update and read the matrix of a head, which has one row of values per key dimension.
  update(layer, matrix, h) {
    const { heads: H, K, products } = this.config, { stored, output } = this, first = h * K * K;
    for (let i = first; i < first + K * K; i++) matrix[i] *= this.a[h];
    for (let n = 0; n < products; n++) {
      const offset = (n * H + h) * K, b = this.b[n * H + h];
      stored.fill(0);
      for (let i = 0; i < K; i++) for (let j = 0; j < K; j++) stored[j] += this.k[offset + i] * matrix[first + i * K + j];
      for (let i = 0; i < K; i++) {
        for (let j = 0; j < K; j++) matrix[first + i * K + j] += this.k[offset + i] * b * (this.v[offset + j] - stored[j]);
      }
    }
    let squares = 0;
    for (let j = 0; j < K; j++) {
      let sum = 0;
      for (let i = 0; i < K; i++) sum += this.q[h * K + i] * matrix[first + i * K + j];
      output[h * K + j] = sum;
      squares += sum * sum;
    }
    const scale = 1 / Math.sqrt(squares / K + 1e-5);
    for (let j = 0; j < K; j++) output[h * K + j] *= scale * layer.headNorm[j];
  }
}

// A copy of the state of a core: rings and arrays in nested lists.
const copyState = (state) => (
  Array.isArray(state) ? state.map(copyState) : state instanceof Ring ? state.copy() : state.slice()
);

// Cores without a step description.
const RECURRENT = { "lstm": LSTM, "deltanet": DeltaNet };

// A function that returns the values of a parameter by name.
function parameterLookup(header, values) {
  return (name, optional = false) => {
    const tensor = header.tensors[name];
    if (!tensor && !optional) throw new Error(`the file has no parameter ${name}`);
    return tensor ? values.subarray(tensor.offset, tensor.offset + tensor.size) : null;
  };
}

const makeCore = (parameters, { core, step }) => (
  step ? new Transformer(parameters, core, step) : new RECURRENT[core.name](parameters, core)
);

// The whole model: embedding, core and head.
class Engine {
  constructor(header, values) {
    const parameters = parameterLookup(header, values);
    this.core = makeCore(parameters, header);
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

  reset() {
    this.position = 0;
    this.core.reset();
  }

  step(token, record = false) {
    const x = this.x, D = x.length, scale = Math.sqrt(D);
    for (let i = 0; i < D; i++) x[i] = this.embedding[token * D + i] * scale;
    if (this.position === 0 && this.startEmbedding) for (let i = 0; i < D; i++) x[i] += this.startEmbedding[i];
    const attention = this.core.step(x, this.position, record);
    this.position += 1;
    const logits = linear(this.head, this.bias, this.norm ? this.norm.apply(x) : x, new Float64Array(this.outputs));
    return { logits, attention: record ? attention : null };
  }
}

// Decode the parameters from base64.
function decodeParameters(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  if (new Uint8Array(Uint16Array.of(1).buffer)[0] === 1) return new Float32Array(bytes.buffer);
  // The data is little-endian; this machine is not.
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

if (typeof module !== "undefined") module.exports = { Engine, decodeParameters, softmax };
