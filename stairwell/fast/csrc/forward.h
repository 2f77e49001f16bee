// The loop over the tokens of a segment, for a tile of rows. Included after tile.h.

template <class real>
struct Forward : Tile<real> {
  using Tile<real>::p;
  using Tile<real>::b0;
  using Tile<real>::M;
  using Tile<real>::scores;
  using Tile<real>::x;
  using Tile<real>::grad;
  using Tile<real>::pairs;
  using Tile<real>::there;
  using Tile<real>::at;
  using Tile<real>::copy;
  using Tile<real>::zero;
  using Tile<real>::add;
  using Tile<real>::drop;
  using Tile<real>::visible_slots;
  using Tile<real>::score_row;
  using Tile<real>::Tile;

  void run() {
    for (i64 s = 0; s < p.sets; ++s) place_old(p.set[s]);
    for (i64 t = 0; t < p.T; ++t) {
      const i64 i = p.keep ? t : 0;
      const real* from = p.x + at(t, p.D);
      for (i64 a = 0; a < p.A; ++a) {
        real* to = a + 1 == p.A ? p.y + at(t, p.D) : p.levels[a + 1] + at(i, p.D);
        layer_forward(p.layers[a], t, i, from, to);
        from = to;
      }
      remember(t, i);
    }
  }

  void place_old(const Set<real>& set) {
    const i64 HK = p.H * p.K, P = p.T + p.R;
    for (i64 b = b0; b < b0 + M; ++b)
      for (i64 r = 0; r < p.R; ++r)
        for (i64 h = 0; h < p.H; ++h) {
          const real* old = set.old + (b * p.R + r) * 2 * HK + h * p.K;
          const i64 place = ((b * p.H + h) * P + p.T + r) * p.K;
          copy(old, set.keys + place, p.K);
          copy(old + HK, set.values + place, p.K);
        }
  }

  void layer_forward(const Layer<real>& layer, i64 t, i64 i, const real* from, real* to) {
    const i64 D = p.D, HK = p.H * p.K;
    const real* input = enter(layer.attention, i, from);
    attend(layer, t, i, input);
    add_output(layer.attention, layer.self.out, HK, t, layer.self.read + at(i, HK), x, from);
    leave(layer.attention, i, x);
    if (layer.source.q) {
      attend_source(layer, t, i, enter(layer.cross, i, x));
      add_output(layer.cross, layer.source.out, HK, t, layer.source.read + at(i, HK), x, x);
      leave(layer.cross, i, x);
    }
    input = enter(layer.feed, i, x);
    real* active = layer.active + at(i, p.F);
    product(layer.inner, D, p.F, input, active);
    rectify(layer, t, active);
    add_output(layer.feed, layer.outer, p.F, t, active, to, x);
    leave(layer.feed, i, to);
  }

  // to (M, out) = init + W from + bias
  void product(const Linear<real>& map, i64 in, i64 out, const real* from, real* to, const real* init = nullptr) {
    multiply(M, out, in, from, in, map.forth, to, out, init, out, map.bias);
  }

  // to (M, D) = x + the sublayer's output, after its dropout
  void add_output(const Sublayer<real>& sub, const Linear<real>& map, i64 in, i64 t, const real* from, real* to,
                  const real* x) {
    if (!sub.kept) return product(map, in, p.D, from, to, x);
    product(map, in, p.D, from, grad);
    drop(sub, t, grad);
    for (i64 n = 0; n < M * p.D; ++n) to[n] = x[n] + grad[n];
  }

  const real* enter(const Sublayer<real>& sub, i64 i, const real* from) {
    real* input = sub.input + at(i, p.D);
    if (p.pre)
      standardize(from, M, p.D, p.eps, input, sub.rstd + at(i, 1));
    else
      copy(from, input, M * p.D);
    return input;
  }

  void leave(const Sublayer<real>& sub, i64 i, real* out) {
    if (p.pre) return;
    real* normed = sub.normed + at(i, p.D);
    standardize(out, M, p.D, p.eps, normed, sub.rstd + at(i, 1));
    for (i64 r = 0; r < M; ++r)
      for (i64 d = 0; d < p.D; ++d) out[r * p.D + d] = normed[r * p.D + d] * sub.scale[d] + sub.shift[d];
  }

  // NaN is neither above nor below zero, and goes on.
  void rectify(const Layer<real>& layer, i64 t, real* active) {
    if (!layer.relu_kept) {
      for (i64 n = 0; n < M * p.F; ++n) active[n] = active[n] <= 0 ? 0 : active[n];
      return;
    }
    for (i64 r = 0; r < M; ++r) {
      const bool* kept = layer.relu_kept + ((b0 + r) * p.T + t) * p.F;
      real* row = active + r * p.F;
      for (i64 f = 0; f < p.F; ++f) row[f] = (row[f] <= 0 ? 0 : row[f]) * (kept[f] * p.relu_factor);
    }
  }

  void attend(const Layer<real>& layer, i64 t, i64 i, const real* input) {
    const i64 HK = p.H * p.K, P = p.T + p.R, row = score_row(p);
    const Set<real>& set = p.set[layer.set];
    real* q = layer.self.q + at(i, HK);
    product(layer.self.query, p.D, HK, input, q);
    if (p.itself) product(set.project, p.D, 2 * HK, input, layer.own + at(i, 2 * HK));
    // Scores of positions for all heads at once; those of keys are added to them head by head.
    multiply(M * p.H, layer.width, p.K, q, p.K, p.position_forth, scores, row);
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 b = b0 + r, n = visible_slots(layer, b, h, t), first = ((b * p.H + h) * P + p.T - t) * p.K;
        const real* query = q + r * HK + h * p.K;
        real* score = scores + (r * p.H + h) * row;
        real* read = layer.self.read + at(i, HK) + r * HK + h * p.K;
        const real* own = p.itself ? layer.own + at(i, 2 * HK) + r * 2 * HK + h * p.K : nullptr;
        if (own) dots(query, own, 1, p.K, score);
        dots(query, set.keys + first, n, p.K, score + p.itself);
        const real* used = weigh(layer.self, layer.ramp ? layer.ramp + h * layer.width : nullptr, b, h, t, i, score,
                                 n + p.itself, layer.width);
        zero(read, p.K);
        if (own) gather(used, 1, own + HK, 0, 1, p.K, read);
        gather(used + p.itself, 1, set.values + first, p.K, n, p.K, read);
      }
  }

  // Scores to weights, zero beyond the n that are seen; returns the weights after dropout.
  const real* weigh(const Attended<real>& heads, const real* ramp, i64 b, i64 h, i64 t, i64 i, real* score, i64 n,
                    i64 width) {
    const i64 place = ((i * p.B + b) * p.H + h) * width;
    real* weights = heads.weights + place;
    if (n > 0) softmax(score, n, ramp, weights);
    zero(weights + n, width - n);
    if (!heads.kept) return weights;
    const bool* kept = heads.kept + ((b * p.H + h) * p.T + t) * heads.kept_width;
    real* used = heads.used + place;
    for (i64 j = 0; j < width; ++j) used[j] = weights[j] * (kept[j] * p.attention_factor);
    return used;
  }

  void attend_source(const Layer<real>& layer, i64 t, i64 i, const real* input) {
    const i64 HK = p.H * p.K, J = p.J;
    real* q = layer.source.q + at(i, HK);
    product(layer.source.query, p.D, HK, input, q);
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 b = b0 + r, first = (b * p.H + h) * J * p.K;
        real* read = layer.source.read + at(i, HK) + r * HK + h * p.K;
        zero(scores, J);
        dots(q + r * HK + h * p.K, layer.source_keys + first, J, p.K, scores);
        const bool some = hide_absent(p.source_mask + b * J);
        const real* used = weigh(layer.source, there, b, h, t, i, scores, some ? J : 0, J);
        zero(read, p.K);
        gather(used, 1, layer.source_values + first, p.K, J, p.K, read);
      }
  }

  // Absent source tokens get a ramp of 0 and the score of one that is there; false if none is.
  bool hide_absent(const bool* mask) {
    i64 present = -1;
    for (i64 j = 0; j < p.J; ++j)
      if (mask[j]) present = j;
    if (present < 0) return false;
    for (i64 j = 0; j < p.J; ++j) {
      there[j] = mask[j];
      if (!mask[j]) scores[j] = scores[present];
    }
    return true;
  }

  // Mix the levels into the token's memory and project its keys and values.
  void remember(i64 t, i64 i) {
    const i64 D = p.D, HK = p.H * p.K, P = p.T + p.R;
    for (i64 g = 0; g < p.G; ++g) {
      real* memory = p.memory + g * p.T * p.B * D + at(t, D);
      zero(memory, M * D);
      for (i64 level = 0; level <= p.A; ++level) {
        const real* from = level == 0 ? p.x + at(t, D) : level == p.A ? p.y + at(t, D) : p.levels[level] + at(i, D);
        add(p.mix[g * (p.A + 1) + level], from, memory, M * D);
      }
      real* input = p.memory_input + g * p.steps * p.B * D + at(i, D);
      if (p.pre)
        standardize(memory, M, D, p.eps, input, p.memory_rstd + g * p.steps * p.B + at(i, 1));
      else
        copy(memory, input, M * D);
    }
    for (i64 s = 0; s < p.sets; ++s) {
      const Set<real>& set = p.set[s];
      const real* input = p.memory_input + set.memory * p.steps * p.B * D + at(i, D);
      product(set.project, D, 2 * HK, input, pairs);
      for (i64 r = 0; r < M; ++r)
        for (i64 h = 0; h < p.H; ++h) {
          const i64 place = (((b0 + r) * p.H + h) * P + p.T - 1 - t) * p.K;
          copy(pairs + r * 2 * HK + h * p.K, set.keys + place, p.K);
          copy(pairs + r * 2 * HK + HK + h * p.K, set.values + place, p.K);
        }
    }
  }
};
