// The same loop in reverse, with pulled key and value gradients. Included after tile.h.

constexpr i64 CHUNK = MR;  // tokens whose keys and values get their gradients from all later chunks in one product

template <class real>
struct Backward : Tile<real> {
  using Tile<real>::p;
  using Tile<real>::b0;
  using Tile<real>::M;
  using Tile<real>::scores;
  using Tile<real>::grad;
  using Tile<real>::dx;
  using Tile<real>::at;
  using Tile<real>::copy;
  using Tile<real>::zero;
  using Tile<real>::add;
  using Tile<real>::drop;
  using Tile<real>::visible_slots;
  using Tile<real>::Tile;

  void run() {
    for (i64 t = p.end - 1; t >= p.begin; --t) {
      recall(t);
      copy(p.d_y + at(t, p.D), dx, M * p.D);
      for (i64 a = p.A - 1; a >= 0; --a) {
        from_memory(a + 1, t);
        layer_backward(p.layers[a], t);
      }
      from_memory(0, t);
      copy(dx, p.d_x + at(t, p.D), M * p.D);
    }
    if (p.begin == 0)
      for (i64 s = 0; s < p.sets; ++s) pull_old(s);
  }

  // Where the tile's part of step t begins in a tensor that is kept for the steps of this call only.
  i64 in_block(i64 t, i64 width) const { return at(t - p.begin, width); }

  // What a level owes to the memories it went into.
  void from_memory(i64 level, i64 t) {
    for (i64 g = 0; g < p.G; ++g)
      add(p.mix[g * (p.A + 1) + level], p.d_memory + g * p.T * p.B * p.D + at(t, p.D), dx, M * p.D);
  }

  // The gradient of this token's memory, from all later tokens that read its keys and values.
  void recall(i64 t) {
    const i64 D = p.D, HK = p.H * p.K;
    for (i64 g = 0; g < p.G; ++g) {
      const i64 place = g * p.T * p.B * D + at(t, D);
      copy(p.d_memory_given + place, p.d_memory + place, M * D);
    }
    for (i64 s = 0; s < p.sets; ++s) {
      const Set<real>& set = p.set[s];
      pull_new(s, t);
      const real* fresh = set.d_new + at(t, 2 * HK);
      real* memory = p.d_memory + set.memory * p.T * p.B * D + at(t, D);
      if (!p.pre) {
        multiply(M, D, 2 * HK, fresh, 2 * HK, set.project.back, memory, D, memory, D);
        continue;
      }
      multiply(M, D, 2 * HK, fresh, 2 * HK, set.project.back, grad, D);
      const i64 place = set.memory * p.T * p.B;
      standardize_back(grad, p.memory_input + place * D + at(t, D), p.memory_rstd + place + at(t, 1), M, D, memory);
    }
  }

  // A chunk's first token in reverse takes what all later chunks owe to the whole chunk; each token then takes what
  // the rest of its own chunk owes to it.
  void pull_new(i64 s, i64 t) {
    const i64 HK = p.H * p.K, begin = t / CHUNK * CHUNK, end = least(begin + CHUNK, p.T), row = p.B * 2 * HK;
    real* out = p.set[s].d_new;
    if (t == end - 1)
      for (i64 u = begin; u < end; ++u) zero(out + at(u, 2 * HK), M * 2 * HK);
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        real* mine = out + at(t, 2 * HK) + r * 2 * HK + h * p.K;
        if (t == end - 1) pull(s, b0 + r, h, p.T - end, end - begin, end, p.T, mine, -row);
        pull(s, b0 + r, h, p.T - 1 - t, 1, t + 1, end, mine, -row);
      }
  }

  void pull_old(i64 s) {
    const i64 HK = p.H * p.K;
    for (i64 b = b0; b < b0 + M; ++b) {
      real* out = p.set[s].d_old + b * p.R * 2 * HK;
      zero(out, p.R * 2 * HK);
      for (i64 h = 0; h < p.H; ++h)
        for (i64 o = 0; o < p.R; o += CHUNK)
          pull(s, b, h, p.T + o, least(CHUNK, p.R - o), 0, p.T, out + o * 2 * HK + h * p.K, 2 * HK);
    }
  }

  // The keys and values at places first .. first + n - 1 take their gradients from the tokens begin .. end - 1:
  // token t gave the key at place j the weight at index t - T + j. The key's gradient goes to out, the value's to
  // out + HK; the next place's is `step` further.
  void pull(i64 s, i64 b, i64 h, i64 first, i64 n, i64 begin, i64 end, real* out, i64 step) {
    const i64 HK = p.H * p.K, vector_stride = p.B * HK;
    for (i64 a = 0; a < p.A; ++a) {
      const Layer<real>& layer = p.layers[a];
      if (layer.set != s) continue;
      const i64 stride = p.B * p.H * layer.width + 1;  // the next token, one slot farther
      const i64 vector = b * HK + h * p.K, band = (b * p.H + h) * layer.width + p.itself - p.T + first;
      const real* used = layer.self.kept ? layer.self.used : layer.self.weights;
      const i64 all = least(end, p.T - first - n + 1 + layer.reach);  // so far every place is in reach
      if (begin < all) {
        const real *q = layer.self.q + vector + begin * vector_stride, *scores = layer.self.d_scores + band;
        const real* read = layer.self.d_read + vector + begin * vector_stride;
        gather_places(n, scores + begin * stride, stride, q, vector_stride, all - begin, out, step);
        gather_places(n, used + band + begin * stride, stride, read, vector_stride, all - begin, out + HK, step);
      }
      for (i64 j = 0; j < n; ++j) {
        const i64 from = most(begin, all), to = least(end, p.T - first - j + layer.reach);
        if (from >= to) continue;
        const i64 weight = band + j + from * stride, row = vector + from * vector_stride;
        gather(layer.self.d_scores + weight, stride, layer.self.q + row, vector_stride, to - from, p.K, out + j * step);
        gather(used + weight, stride, layer.self.d_read + row, vector_stride, to - from, p.K, out + HK + j * step);
      }
    }
  }

  void gather_places(i64 n, const real* w, i64 w_stride, const real* rows, i64 stride, i64 count, real* out, i64 step) {
    switch (n) {
      case 1: return gather(w, w_stride, rows, stride, count, p.K, out);
      case 2: return gather_slots<real, 2>(w, w_stride, rows, stride, count, p.K, out, step);
      case 3: return gather_slots<real, 3>(w, w_stride, rows, stride, count, p.K, out, step);
      case 4: return gather_slots<real, 4>(w, w_stride, rows, stride, count, p.K, out, step);
      case 5: return gather_slots<real, 5>(w, w_stride, rows, stride, count, p.K, out, step);
      default: return gather_slots<real, 6>(w, w_stride, rows, stride, count, p.K, out, step);
    }
  }

  void layer_backward(const Layer<real>& layer, i64 t) {
    const i64 D = p.D, HK = p.H * p.K, F = p.F;
    leave_back(layer.feed, t);
    real* inner = layer.d_inner + in_block(t, F);
    multiply(M, F, D, layer.feed.d_out + in_block(t, D), D, layer.outer.back, inner, F);
    rectify_back(layer, t, inner);
    multiply(M, D, F, inner, F, layer.inner.back, grad, D);
    enter_back(layer.feed, t);
    if (layer.source.q) {
      leave_back(layer.cross, t);
      const real* out = layer.cross.d_out + in_block(t, D);
      multiply(M, HK, D, out, D, layer.source.out.back, layer.source.d_read + in_block(t, HK), HK);
      attend_source_back(layer, t);
      multiply(M, D, HK, layer.source.d_query + in_block(t, HK), HK, layer.source.query.back, grad, D);
      enter_back(layer.cross, t);
    }
    leave_back(layer.attention, t);
    const real* out = layer.attention.d_out + in_block(t, D);
    multiply(M, HK, D, out, D, layer.self.out.back, layer.self.d_read + at(t, HK), HK);
    attend_back(layer, t);
    multiply(M, D, HK, layer.self.d_query + in_block(t, HK), HK, layer.self.query.back, grad, D);
    if (p.itself)
      multiply(M, D, 2 * HK, layer.d_own + in_block(t, 2 * HK), 2 * HK, p.set[layer.set].project.back, grad, D, grad,
               D);
    enter_back(layer.attention, t);
  }

  void leave_back(const Sublayer<real>& sub, i64 t) {
    const i64 n = M * p.D;
    if (!p.pre) {
      copy(dx, sub.d_normed + in_block(t, p.D), n);
      for (i64 r = 0; r < M; ++r)
        for (i64 d = 0; d < p.D; ++d) grad[r * p.D + d] = dx[r * p.D + d] * sub.scale[d];
      zero(dx, n);
      standardize_back(grad, sub.normed + at(t, p.D), sub.rstd + at(t, 1), M, p.D, dx);
    }
    real* out = sub.d_out + in_block(t, p.D);
    copy(dx, out, n);
    if (sub.kept) drop(sub, t, out);
  }

  void enter_back(const Sublayer<real>& sub, i64 t) {
    if (p.pre)
      standardize_back(grad, sub.input + at(t, p.D), sub.rstd + at(t, 1), M, p.D, dx);
    else
      add(1, grad, dx, M * p.D);
  }

  void rectify_back(const Layer<real>& layer, i64 t, real* inner) {
    const real* active = layer.active + at(t, p.F);
    const real factor = layer.relu_kept ? p.relu_factor : 1;
    for (i64 n = 0; n < M * p.F; ++n) inner[n] = active[n] <= 0 ? 0 : inner[n] * factor;
  }

  void attend_back(const Layer<real>& layer, i64 t) {
    const i64 HK = p.H * p.K, P = p.T + p.R, width = layer.width;
    const Set<real>& set = p.set[layer.set];
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 b = b0 + r, n = visible_slots(layer, b, h, t), first = ((b * p.H + h) * P + p.T - t) * p.K;
        const i64 head = at(t, HK) + r * HK + h * p.K, pair = r * 2 * HK + h * p.K;
        const real *read = layer.self.d_read + head, *own = p.itself ? layer.own + at(t, 2 * HK) + pair : nullptr;
        real *query = layer.self.d_query + in_block(t, HK) + r * HK + h * p.K, *grads = scores;
        zero(grads, n + p.itself);
        if (own) dots(read, own + HK, 1, p.K, grads);
        dots(read, set.values + first, n, p.K, grads + p.itself);
        real* gradients = layer.self.d_scores + ((t * p.B + b) * p.H + h) * width;
        softmax_back(layer.self, b, h, t, grads, n + p.itself, width, gradients);
        zero(query, p.K);
        if (own) gather(gradients, 1, own, 0, 1, p.K, query);
        gather(gradients + p.itself, 1, set.keys + first, p.K, n, p.K, query);
        if (own) own_back(layer, head, in_block(t, 2 * HK) + pair, gradients[0], ((t * p.B + b) * p.H + h) * width);
      }
    real* query = layer.self.d_query + in_block(t, HK);
    multiply(M * p.H, p.K, width, layer.self.d_scores + at(t, p.H * width), width, p.position_back, query, p.K, query,
             p.K);
  }

  // Through the token's own key and value.
  void own_back(const Layer<real>& layer, i64 head, i64 pair, real gradient, i64 weight) {
    const real used = (layer.self.kept ? layer.self.used : layer.self.weights)[weight];
    real *key = layer.d_own + pair, *value = key + p.H * p.K;
    for (i64 k = 0; k < p.K; ++k) {
      key[k] = gradient * layer.self.q[head + k];
      value[k] = used * layer.self.d_read[head + k];
    }
  }

  // From the gradients of the used weights to those of the scores, zero beyond the n that are seen.
  void softmax_back(const Attended<real>& heads, i64 b, i64 h, i64 t, real* grads, i64 n, i64 width, real* d_scores) {
    const real* weights = heads.weights + ((t * p.B + b) * p.H + h) * width;
    real along = 0;
    if (heads.kept) {
      const bool* kept = heads.kept + ((b * p.H + h) * p.T + t) * heads.kept_width;
      for (i64 j = 0; j < n; ++j) grads[j] *= kept[j] * p.attention_factor;
    }
#pragma omp simd reduction(+ : along)
    for (i64 j = 0; j < n; ++j) along += weights[j] * grads[j];
    for (i64 j = 0; j < n; ++j) d_scores[j] = weights[j] * (grads[j] - along);
    zero(d_scores + n, width - n);
  }

  void attend_source_back(const Layer<real>& layer, i64 t) {
    const i64 HK = p.H * p.K, J = p.J;
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 b = b0 + r, head = in_block(t, HK) + r * HK + h * p.K, first = (b * p.H + h) * J * p.K;
        real* gradients = layer.source.d_scores + in_block(t, p.H * J) + (r * p.H + h) * J;
        zero(scores, J);
        dots(layer.source.d_read + head, layer.source_values + first, J, p.K, scores);
        softmax_back(layer.source, b, h, t, scores, J, J, gradients);
        zero(layer.source.d_query + head, p.K);
        gather(gradients, 1, layer.source_keys + first, p.K, J, p.K, layer.source.d_query + head);
      }
  }
};
