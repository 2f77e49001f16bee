// A sequence-to-sequence model: an encoder reads the source once, a decoder reads the target one token at a time.
//
//   const engine = new Seq2SeqEngine(header, unpackParameters(header, block));     as packed by stairwell/export/pack.py
//   finish(engine.encode(sourceIds));
//   const state = engine.start();
//   const { logits, attention } = engine.step(token, state, true);      changes `state`; engine.copy(state) is independent
//
// `attention` has one entry per layer and pass with cross-attention: its weights by head and source token.
// Letters: D width, H heads, K head width, J source tokens.
const ENCODED_AT_ONCE = 16; // source tokens between two pauses of `encode`

// Run a generator without pauses and return its result.
function finish(generator) {
  for (;;) {
    const { done, value } = generator.next();
    if (done) return value;
  }
}

// Attention of one query to J slots, whose keys and values are in rows of `stride` numbers. `bias(j, h)` is added to the
// products of queries and keys. Writes the output of all heads and returns their weights.
function attendTo(q, keys, values, stride, J, H, K, output, bias = null) {
  const weights = [];
  output.fill(0);
  for (let h = 0; h < H; h++) {
    const scores = new Float64Array(J), head = h * K;
    for (let j = 0; j < J; j++) {
      let score = bias ? bias(j, h) : 0;
      for (let i = 0, k = j * stride + head; i < K; i++) score += q[head + i] * keys[k + i];
      scores[j] = score / Math.sqrt(K);
    }
    const shares = softmax(scores);
    for (let j = 0; j < J; j++) for (let i = 0, v = j * stride + head; i < K; i++) output[head + i] += shares[j] * values[v + i];
    weights.push(shares);
  }
  return weights;
}

const row = (matrix, j, width) => matrix.subarray(j * width, (j + 1) * width);
const addTo = (x, z) => { for (let i = 0; i < x.length; i++) x[i] += z[i]; };
const positive = (x) => { for (let i = 0; i < x.length; i++) if (x[i] < 0) x[i] = 0; return x; };

class EncoderLayer {
  constructor(parameters, name, { heads, norm }) {
    const parameter = (part) => parameters(`${name}.${part}`);
    this.preNorm = norm === "pre";
    this.H = heads;
    this.attentionNorm = new Norm(parameters, `${name}.attention_norm`);
    this.feedForwardNorm = new Norm(parameters, `${name}.feed_forward_norm`);
    [this.project, this.out] = [parameter("project.weight"), parameter("out.weight")];
    [this.inner, this.innerBias] = [parameter("inner.weight"), parameter("inner.bias")];
    [this.outer, this.outerBias] = [parameter("outer.weight"), parameter("outer.bias")];
  }

  // Apply the layer to x (J rows of D) in place. `distances`: embeddings of signed distances, or null.
  *apply(x, J, D, distances) {
    const projected = new Float64Array(3 * J * D); // queries, keys and values of each token
    for (let j = 0; j < J; j++) {
      if (j % ENCODED_AT_ONCE === 0) yield;
      const token = row(x, j, D);
      linear(this.project, null, this.preNorm ? this.attentionNorm.apply(token) : token, row(projected, j, 3 * D));
    }
    const output = new Float64Array(D), z = new Float64Array(D), hidden = new Float64Array(this.innerBias.length);
    for (let j = 0; j < J; j++) {
      if (j % ENCODED_AT_ONCE === 0) yield;
      const token = row(x, j, D), q = row(projected, j, 3 * D);
      attendTo(q, projected.subarray(D), projected.subarray(2 * D), 3 * D, J, this.H, D / this.H, output, distances && this.bias(q, j, distances));
      addTo(token, linear(this.out, null, output, z));
      if (!this.preNorm) this.attentionNorm.apply(token, token);
      const normed = this.preNorm ? this.feedForwardNorm.apply(token) : token;
      addTo(token, linear(this.outer, this.outerBias, positive(linear(this.inner, this.innerBias, normed, hidden)), z));
      if (!this.preNorm) this.feedForwardNorm.apply(token, token);
    }
  }

  // The products of the query of token j with the embedding of the distance of another token.
  bias(q, j, distances) {
    const K = q.length / 3 / this.H, farthest = (distances.length / K - 1) / 2;
    return (other, h) => {
      const index = Math.min(Math.max(other - j, -farthest), farthest) + farthest;
      let score = 0;
      for (let i = 0; i < K; i++) score += q[h * K + i] * distances[index * K + i];
      return score;
    };
  }
}

class Encoder {
  constructor(parameters, config) {
    this.layers = Array.from({ length: config.layers }, (_, l) => new EncoderLayer(parameters, `encoder.layers.${l}`, config));
    this.norm = config.norm === "pre" ? new Norm(parameters, "encoder.norm") : null;
    this.distances = parameters("encoder.distances", true);
  }

  // Encode the embedded source x (J rows of D) in place.
  *apply(x, J, D) {
    if (!this.distances) addSinusoids(x, J, D);
    for (const layer of this.layers) yield* layer.apply(x, J, D, this.distances);
    if (this.norm) for (let j = 0; j < J; j++) this.norm.apply(row(x, j, D), row(x, j, D));
  }
}

function addSinusoids(x, J, D) {
  for (let j = 0; j < J; j++) {
    for (let i = 0; i < D; i++) {
      const angle = j * Math.exp((-Math.log(10000) * (i - (i % 2))) / D);
      x[j * D + i] += i % 2 ? Math.cos(angle) : Math.sin(angle);
    }
  }
}

// Attention to the encoded source, with its norm and residual sum: after the attention of a layer to the memory, or, of
// cores without attention, after the core.
class CrossAttention {
  constructor(parameters, name, norm, { H, K, preNorm }) {
    const parameter = (part) => parameters(`${name}.${part}.weight`);
    Object.assign(this, { H, K, preNorm, norm: new Norm(parameters, norm) });
    [this.query, this.key, this.value, this.out] = ["query", "key", "value", "out"].map(parameter);
    this.q = new Float64Array(H * K);
    this.output = new Float64Array(H * K);
    this.z = new Float64Array(this.out.length / (H * K));
  }

  // Project the encoded source (J rows of D) to keys and values.
  read(encoded, J, D) {
    const width = this.H * this.K;
    this.J = J;
    [this.keys, this.values] = [this.key, this.value].map((weight) => {
      const projected = new Float64Array(J * width);
      for (let j = 0; j < J; j++) linear(weight, null, row(encoded, j, D), row(projected, j, width));
      return projected;
    });
  }

  // Add the output to x. The weights are added to the recorded attention of the layer, if there is one.
  addTo(x, attention) {
    const { H, K } = this;
    linear(this.query, null, this.preNorm ? this.norm.apply(x) : x, this.q);
    const weights = attendTo(this.q, this.keys, this.values, H * K, this.J, H, K, this.output);
    addTo(x, linear(this.out, null, this.output, this.z));
    if (!this.preNorm) this.norm.apply(x, x);
    if (attention) attention.source = weights;
  }
}

// The attention to the source after a core that has none, and a feed-forward.
class Reader {
  constructor(parameters, H, D) {
    this.cross = new CrossAttention(parameters, "reader.attention", "reader.norm", { H, K: D / H, preNorm: true });
    this.norm = new Norm(parameters, "reader.feed_forward_norm");
    const parameter = (part) => parameters(`reader.feed_forward.${part}`);
    [this.inner, this.innerBias] = [parameter("inner.weight"), parameter("inner.bias")];
    [this.outer, this.outerBias] = [parameter("out.weight"), parameter("out.bias")];
    this.hidden = new Float64Array(this.innerBias.length);
    this.z = new Float64Array(D);
  }

  apply(x, attention) {
    this.cross.addTo(x, attention);
    positive(linear(this.inner, this.innerBias, this.norm.apply(x), this.hidden));
    addTo(x, linear(this.outer, this.outerBias, this.hidden, this.z));
  }
}

class Seq2SeqEngine {
  constructor(header, values) {
    const parameters = parameterLookup(header, values), { encoder, outputs } = header.seq2seq;
    this.core = makeCore(parameters, header);
    this.D = header.core.width;
    if (header.step) this.core.layers.forEach((layer, l) => {
      layer.cross = new CrossAttention(parameters, `core.layers.${l}.cross`, `core.layers.${l}.cross_norm`, layer);
    });
    this.reader = header.step ? null : new Reader(parameters, encoder.heads, this.D);
    this.encoder = new Encoder(parameters, encoder);
    this.embedding = parameters("embedding.vectors");
    this.sourceEmbedding = parameters("source_embedding.vectors", true) ?? this.embedding;
    this.startEmbedding = parameters("start_embedding.vector", true);
    this.norm = header.tensors["norm.weight"] ? new Norm(parameters, "norm") : null;
    this.head = parameters("head.vectors", true) ?? this.embedding;
    this.bias = parameters("head.bias", true);
    this.outputs = outputs;
    this.x = new Float64Array(this.D);
    this.layerWeights = this.core.mix ?? null;
  }

  embed(table, token, x) {
    const D = this.D, scale = Math.sqrt(D);
    for (let i = 0; i < D; i++) x[i] = table[token * D + i] * scale;
  }

  // Read the source. A generator: the caller may pause between its steps.
  *encode(ids) {
    const { D } = this, J = ids.length, x = new Float64Array(J * D);
    this.source = null;
    ids.forEach((id, j) => this.embed(this.sourceEmbedding, id, row(x, j, D)));
    yield* this.encoder.apply(x, J, D);
    for (const cross of this.reader ? [this.reader.cross] : this.core.layers.map((layer) => layer.cross)) {
      yield;
      cross.read(x, J, D);
    }
    this.source = ids;
  }

  // The state before the first token.
  start() {
    this.core.reset();
    return { position: 0, core: this.core.state };
  }

  copy({ position, core }) { return { position, core: copyState(core) }; }

  // Read a token; `state` becomes the one after it.
  step(token, state, record = false) {
    const { x } = this;
    this.embed(this.embedding, token, x);
    if (state.position === 0 && this.startEmbedding) addTo(x, this.startEmbedding);
    this.core.state = state.core;
    let attention = this.core.step(x, state.position, record);
    if (this.reader) {
      attention = record ? [{}] : null;
      this.reader.apply(x, attention?.[0]);
    }
    state.position += 1;
    const logits = linear(this.head, this.bias, this.norm ? this.norm.apply(x) : x, new Float64Array(this.outputs));
    return { logits, attention: record ? attention.map(({ source }) => source) : null };
  }
}

// A number of 16 bits.
function decodeHalf(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : (fraction / 1024) * 2 ** -14);
}

// Decode the parameters from base64: each tensor is float32, float16 (if that is exact), or int8 after one scale per row.
function unpackParameters({ tensors }, base64) {
  const text = atob(base64.trim()), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  const view = new DataView(bytes.buffer), parts = Object.values(tensors);
  const values = new Float32Array(parts.reduce((sum, { size }) => sum + size, 0));
  let byte = 0;
  for (const { offset, size, type, rows } of parts) {
    if (type === "int8") {
      const columns = size / rows, integers = byte + 4 * rows;
      for (let r = 0; r < rows; r++) {
        const scale = view.getFloat32(byte + 4 * r, true);
        for (let i = r * columns; i < (r + 1) * columns; i++) values[offset + i] = view.getInt8(integers + i) * scale;
      }
      byte = integers + size;
    } else if (type === "float16") {
      for (let i = 0; i < size; i++, byte += 2) values[offset + i] = decodeHalf(view.getUint16(byte, true));
    } else {
      for (let i = 0; i < size; i++, byte += 4) values[offset + i] = view.getFloat32(byte, true);
    }
  }
  return values;
}
