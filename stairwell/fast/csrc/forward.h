// The forward loop over the tokens of a Feedback segment, for a tile of the batch. Included after tile.h.

template <class real>
struct Forward : Tile<real> {
  using Tile<real>::p;
  using Tile<real>::b0;
  using Tile<real>::M;
  using Tile<real>::scores;
  using Tile<real>::x;
  using Tile<real>::grad;
  using Tile<real>::kv;
  using Tile<real>::present;
  using Tile<real>::at;
  using Tile<real>::copy;
  using Tile<real>::zero;
  using Tile<real>::add;
  using Tile<real>::drop;
  using Tile<real>::store_kv;
  using Tile<real>::visible_slots;
  using Tile<real>::with_kv;
  using Tile<real>::score_row;
  using Tile<real>::team;
  using Tile<real>::wait;
  using Tile<real>::rows;
  using Tile<real>::pairs;
  using Tile<real>::columns;
  using Tile<real>::multiply_columns;
  using typename Tile<real>::Range;
  using Tile<real>::Tile;

  void run() {
    for (i64 s = 0; s < p.n_groups; ++s) copy_state_kv(p.groups[s]);
    for (i64 t = 0; t < p.T && team.continues(); ++t) {
      const i64 i = p.needs_gradient ? t : 0;
      const real* from = p.x + at(t, p.D);
      for (i64 a = 0; a < p.A; ++a) {
        real* to = a + 1 == p.A ? p.y + at(t, p.D) : p.layer_outputs[a + 1] + at(i, p.D);
        layer_forward(p.layers[a], t, i, from, to);
        from = to;
      }
      write_memory(t, i);
    }
  }

  void copy_state_kv(const KVGroup<real>& group) {
    const i64 HK = p.H * p.K, P = p.T + p.R;
    const Range own = pairs();
    with_kv(group, [&](auto* keys, auto* values) {
      for (i64 pair = own.first; pair < own.last; ++pair)
        for (i64 r = 0; r < p.R; ++r) {
          const i64 b = b0 + pair / p.H, h = pair % p.H;
          const real* from = group.state_kv + (b * p.R + r) * 2 * HK + h * p.K;
          const i64 offset = ((b * p.H + h) * P + p.T + r) * p.K;
          store_kv(from, keys + offset, p.K);
          store_kv(from + HK, values + offset, p.K);
        }
    });
  }

  void layer_forward(const Layer<real>& layer, i64 t, i64 i, const real* from, real* to) {
    const i64 D = p.D, HK = p.H * p.K;
    const real* input = sublayer_input(layer.attention, i, from);
    attend(layer, t, i, input);
    add_output(layer.attention, layer.self.out, HK, t, layer.self.z + at(i, HK), x, from);
    wait();
    sublayer_output(layer.attention, i, x);
    if (layer.source.q) {
      attend_source(layer, t, i, sublayer_input(layer.cross, i, x));
      add_output(layer.cross, layer.source.out, HK, t, layer.source.z + at(i, HK), x, x);
      wait();
      sublayer_output(layer.cross, i, x);
    }
    input = sublayer_input(layer.feed, i, x);
    wait();
    real* active = layer.active + at(i, p.F);
    product(layer.inner, D, p.F, input, active);
    relu(layer.relu_mask ? layer.relu_mask + (b0 * p.T + t) * p.F : nullptr, p.T, active);
    wait();
    add_output(layer.feed, layer.outer, p.F, t, active, to, x);
    wait();
    sublayer_output(layer.feed, i, to);
  }

  // This thread's columns of to (M, out) = init + W from + bias.
  void product(const Linear<real>& map, i64 in, i64 out, const real* from, real* to, const real* init = nullptr) {
    multiply_columns(out, in, from, map.forward, to, init, map.bias);
  }

  // to (M, D) = x + the sublayer's output after dropout
  void add_output(const Sublayer<real>& sub, const Linear<real>& map, i64 in, i64 t, const real* from, real* to,
                  const real* x) {
    if (!sub.mask) return product(map, in, p.D, from, to, x);
    product(map, in, p.D, from, grad);
    const Range own = columns(p.D);
    drop(sub, t, grad, {0, M}, own);
    for (i64 r = 0; r < M; ++r)
      for (i64 d = r * p.D + own.first; d < r * p.D + own.last; ++d) to[d] = x[d] + grad[d];
  }

  const real* sublayer_input(const Sublayer<real>& sub, i64 i, const real* from) {
    real* input = sub.input + at(i, p.D);
    normalize(from, input, sub.rstd + at(i, 1));
    return input;
  }

  // This thread's rows of the input of a sublayer or of the memory's projections.
  void normalize(const real* from, real* to, real* rstd) {
    const Range own = rows();
    const i64 first = own.first * p.D;
    if (p.pre_norm)
      standardize(from + first, own.size(), p.D, p.eps, to + first, rstd + own.first);
    else
      copy(from + first, to + first, own.size() * p.D);
  }

  void sublayer_output(const Sublayer<real>& sub, i64 i, real* out) {
    if (p.pre_norm) return;
    const Range own = rows();
    const i64 first = own.first * p.D;
    real* normed = sub.normed + at(i, p.D);
    standardize(out + first, own.size(), p.D, p.eps, normed + first, sub.rstd + at(i, 1) + own.first);
    for (i64 r = own.first; r < own.last; ++r)
      for (i64 d = 0; d < p.D; ++d) out[r * p.D + d] = normed[r * p.D + d] * sub.scale[d] + sub.shift[d];
  }

  // ReLU with dropout, given the mask of the tile's first stream; those of its streams are T tokens apart. NaN compares
  // false with zero, so it is propagated.
  void relu(const bool* mask, i64 T, real* active) {
    const Range own = columns(p.F);
    for (i64 r = 0; r < M; ++r) {
      real* row = active + r * p.F;
      for (i64 f = own.first; f < own.last; ++f) row[f] = row[f] <= 0 ? 0 : row[f];
      if (!mask) continue;
      const bool* keep = mask + r * T * p.F;
      for (i64 f = own.first; f < own.last; ++f) row[f] *= keep[f] * p.relu_factor;
    }
  }

  void attend(const Layer<real>& layer, i64 t, i64 i, const real* input) {
    const i64 HK = p.H * p.K, P = p.T + p.R, row = score_row(p), current = p.attend_to_current;
    const KVGroup<real>& group = p.groups[layer.kv_group];
    real* q = layer.self.q + at(i, HK);
    wait();
    product(layer.self.query, p.D, HK, input, q);
    if (current) product(group.project, p.D, 2 * HK, input, layer.current_kv + at(i, 2 * HK));
    wait();
    const Range own = pairs();
    // Position scores of all heads in one product; key scores are added per head.
    multiply(own.size(), layer.width, p.K, q + own.first * p.K, p.K, p.position_forward, scores + own.first * row, row);
    for (i64 pair = own.first; pair < own.last; ++pair) {
      const i64 r = pair / p.H, h = pair % p.H, b = b0 + r, n = visible_slots(layer, b, h, t);
      const i64 first = ((b * p.H + h) * P + p.T - t) * p.K;
      const real* query = q + pair * p.K;
      real* score = scores + pair * row;
      real* z = layer.self.z + at(i, HK) + pair * p.K;
      const real* current_kv = current ? layer.current_kv + at(i, 2 * HK) + r * 2 * HK + h * p.K : nullptr;
      const real* ramp = layer.ramp ? layer.ramp + h * layer.width : nullptr;
      with_kv(group, [&](const auto* keys, const auto* values) {
        if (current_kv) dots(query, current_kv, 1, p.K, score);
        dots(query, keys + first, n, p.K, score + current);
        const real* used = attention_weights(layer.self, ramp, b, h, t, i, score, n + current, layer.width);
        zero(z, p.K);
        if (current_kv) add_weighted(used, 1, current_kv + HK, 0, 1, p.K, z);
        add_weighted(used + current, 1, values + first, p.K, n, p.K, z);
      });
    }
    wait();
  }

  // Compute attention weights from scores, zero beyond the n visible slots. Return the weights after dropout.
  const real* attention_weights(const Attention<real>& heads, const real* ramp, i64 b, i64 h, i64 t, i64 i, real* score,
                                i64 n, i64 width) {
    const i64 offset = ((i * p.B + b) * p.H + h) * width;
    real* weights = heads.weights + offset;
    if (n > 0) softmax(score, n, ramp, weights);
    zero(weights + n, width - n);
    if (!heads.mask) return weights;
    const bool* mask = heads.mask + ((b * p.H + h) * p.T + t) * heads.mask_width;
    real* used = heads.used + offset;
    for (i64 j = 0; j < width; ++j) used[j] = weights[j] * (mask[j] * p.attention_factor);
    return used;
  }

  void attend_source(const Layer<real>& layer, i64 t, i64 i, const real* input) {
    const i64 HK = p.H * p.K, J = p.J;
    real* q = layer.source.q + at(i, HK);
    wait();
    product(layer.source.query, p.D, HK, input, q);
    wait();
    const Range own = pairs();
    for (i64 pair = own.first; pair < own.last; ++pair) {
      const i64 h = pair % p.H, b = b0 + pair / p.H, first = (b * p.H + h) * J * p.K;
      real *z = layer.source.z + at(i, HK) + pair * p.K, *score = scores + pair * score_row(p);
      zero(score, J);
      dots(q + pair * p.K, layer.source_keys + first, J, p.K, score);
      const i64 n = mask_padding(p.source_mask + b * J, score) ? J : 0;
      const real* used = attention_weights(layer.source, present, b, h, t, i, score, n, J);
      zero(z, p.K);
      add_weighted(used, 1, layer.source_values + first, p.K, J, p.K, z);
    }
    wait();
  }

  // Give padding a ramp of 0 and the score of a token that is present. Return false if all tokens are padding.
  bool mask_padding(const bool* mask, real* score) {
    i64 unpadded = -1;
    for (i64 j = 0; j < p.J; ++j)
      if (mask[j]) unpadded = j;
    if (unpadded < 0) return false;
    for (i64 j = 0; j < p.J; ++j) {
      present[j] = mask[j];
      if (!mask[j]) score[j] = score[unpadded];
    }
    return true;
  }

  // Mix the layer outputs into the token's memory and project its keys and values.
  void write_memory(i64 t, i64 i) {
    const i64 D = p.D, HK = p.H * p.K, P = p.T + p.R;
    const Range own_rows = rows(), own_pairs = pairs();
    const i64 first = own_rows.first * D, size = own_rows.size() * D;
    for (i64 g = 0; g < p.G; ++g) {
      real* memory = p.memory + g * p.T * p.B * D + at(t, D);
      zero(memory + first, size);
      for (i64 l = 0; l <= p.A; ++l) {
        const real* from = l == 0 ? p.x + at(t, D) : l == p.A ? p.y + at(t, D) : p.layer_outputs[l] + at(i, D);
        add(p.mix[g * (p.A + 1) + l], from + first, memory + first, size);
      }
      normalize(memory, p.memory_input + g * p.steps * p.B * D + at(i, D), p.memory_rstd + g * p.steps * p.B + at(i, 1));
    }
    for (i64 s = 0; s < p.n_groups; ++s) {
      const KVGroup<real>& group = p.groups[s];
      const real* input = p.memory_input + group.memory * p.steps * p.B * D + at(i, D);
      wait();
      product(group.project, D, 2 * HK, input, kv);
      wait();
      with_kv(group, [&](auto* keys, auto* values) {
        for (i64 pair = own_pairs.first; pair < own_pairs.last; ++pair) {
          const i64 r = pair / p.H, h = pair % p.H, offset = (((b0 + r) * p.H + h) * P + p.T - 1 - t) * p.K;
          store_kv(kv + r * 2 * HK + h * p.K, keys + offset, p.K);
          store_kv(kv + r * 2 * HK + HK + h * p.K, values + offset, p.K);
        }
      });
    }
  }
};
