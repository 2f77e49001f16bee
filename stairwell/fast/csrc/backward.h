// The backward loop over the tokens of a Feedback segment. Gradients of a key or value are computed when its token is
// reached, from all later tokens that attended to it. Included after tile.h.

constexpr i64 KV_CHUNK = BLOCK_ROWS;  // tokens whose keys and values get gradients from all later chunks in one product

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
    for (i64 t = p.end - 1; t >= p.begin; --t) {
      if (!team.continues()) return;
      memory_backward(t);
      const i64 first = rows().first * p.D, size = rows().size() * p.D;
      copy(p.d_y + at(t, p.D) + first, dx + first, size);
      for (i64 a = p.A - 1; a >= 0; --a) {
        grad_from_memory(a + 1, t);
        layer_backward(p.layers[a], t);
      }
      grad_from_memory(0, t);
      copy(dx + first, p.d_x + at(t, p.D) + first, size);
    }
    wait();
    if (p.begin == 0)
      for (i64 s = 0; s < p.n_groups; ++s) state_kv_backward(s);
  }

  // Offset of the tile's part of token t in a tensor that holds only the tokens of this call.
  i64 in_block(i64 t, i64 width) const { return at(t - p.begin, width); }

  // Gradient of a layer's output through the memory mix.
  void grad_from_memory(i64 l, i64 t) {
    const i64 first = rows().first * p.D;
    for (i64 g = 0; g < p.G; ++g)
      add(p.mix[g * (p.A + 1) + l], p.d_memory + g * p.T * p.B * p.D + at(t, p.D) + first, dx + first,
          rows().size() * p.D);
  }

  // Gradient of this token's memory, from all later tokens that attended to its keys and values.
  void memory_backward(i64 t) {
    const i64 D = p.D, HK = p.H * p.K;
    const Range own = rows();
    for (i64 g = 0; g < p.G; ++g) {
      const i64 offset = g * p.T * p.B * D + at(t, D) + own.first * D;
      copy(p.d_memory_incoming + offset, p.d_memory + offset, own.size() * D);
    }
    for (i64 s = 0; s < p.n_groups; ++s) {
      const KVGroup<real>& group = p.groups[s];
      new_kv_backward(s, t);
      const real* d_new = group.d_new_kv + at(t, 2 * HK);
      real* memory = p.d_memory + group.memory * p.T * p.B * D + at(t, D);
      wait();
      multiply_columns(D, 2 * HK, d_new, group.project.backward, p.pre_norm ? grad : memory,
                       p.pre_norm ? nullptr : memory);
      wait();
      if (!p.pre_norm) continue;
      const i64 offset = group.memory * p.T * p.B, first = own.first * D;
      standardize_backward(grad + first, p.memory_input + offset * D + at(t, D) + first,
                           p.memory_rstd + offset + at(t, 1) + own.first, own.size(), D, memory + first);
    }
  }

  // The last token of a chunk adds the gradients from all later chunks to the whole chunk. Each token then adds those
  // from later tokens of its own chunk.
  void new_kv_backward(i64 s, i64 t) {
    const i64 HK = p.H * p.K, begin = t / KV_CHUNK * KV_CHUNK, end = min(begin + KV_CHUNK, p.T), row = p.B * 2 * HK;
    const Range own = pairs();
    for (i64 pair = own.first; pair < own.last; ++pair) {
      const i64 r = pair / p.H, h = pair % p.H;
      real* d_kv = p.groups[s].d_new_kv + at(t, 2 * HK) + r * 2 * HK + h * p.K;
      if (t == end - 1) {
        for (i64 u = 0; u < end - begin; ++u) zero_kv(d_kv - u * row);
        add_kv_gradients(s, b0 + r, h, p.T - end, end - begin, end, p.T, d_kv, -row);
      }
      add_kv_gradients(s, b0 + r, h, p.T - 1 - t, 1, t + 1, end, d_kv, -row);
    }
  }

  // Zero the gradients of a head's key and value.
  void zero_kv(real* d_kv) const {
    zero(d_kv, p.K);
    zero(d_kv + p.H * p.K, p.K);
  }

  void state_kv_backward(i64 s) {
    const i64 HK = p.H * p.K;
    const Range own = pairs();
    for (i64 pair = own.first; pair < own.last; ++pair) {
      const i64 b = b0 + pair / p.H, h = pair % p.H;
      real* out = p.groups[s].d_state_kv + b * p.R * 2 * HK + h * p.K;
      for (i64 o = 0; o < p.R; ++o) zero_kv(out + o * 2 * HK);
      for (i64 o = 0; o < p.R; o += KV_CHUNK)
        add_kv_gradients(s, b, h, p.T + o, min(KV_CHUNK, p.R - o), 0, p.T, out + o * 2 * HK, 2 * HK);
    }
  }

  // Add gradients of the keys and values at positions first .. first + n - 1 from the tokens begin .. end - 1. The
  // weight of token t for position j is at index t - T + j. Key gradients go to `out`, value gradients to `out + HK`;
  // the next position is `step` elements further.
  void add_kv_gradients(i64 s, i64 b, i64 h, i64 first, i64 n, i64 begin, i64 end, real* out, i64 step) {
    const i64 HK = p.H * p.K, vector_stride = p.B * HK;
    for (i64 a = 0; a < p.A; ++a) {
      const Layer<real>& layer = p.layers[a];
      if (layer.kv_group != s) continue;
      const i64 stride = p.B * p.H * layer.width + 1;  // the next token, one slot farther
      const i64 vector = b * HK + h * p.K, band = (b * p.H + h) * layer.width + p.attend_to_current - p.T + first;
      const real* used = layer.self.mask ? layer.self.used : layer.self.weights;
      const i64 all = min(end, p.T - first - n + 1 + layer.span);  // up to here every position is within the span
      if (begin < all) {
        const real *q = layer.self.q + vector + begin * vector_stride, *scores = layer.self.d_scores + band;
        const real* d_z = layer.self.d_z + vector + begin * vector_stride;
        add_weighted_n(n, scores + begin * stride, stride, q, vector_stride, all - begin, out, step);
        add_weighted_n(n, used + band + begin * stride, stride, d_z, vector_stride, all - begin, out + HK, step);
      }
      for (i64 j = 0; j < n; ++j) {
        const i64 from = max(begin, all), to = min(end, p.T - first - j + layer.span);
        if (from >= to) continue;
        const i64 weight = band + j + from * stride, row = vector + from * vector_stride;
        const real *d_scores = layer.self.d_scores + weight, *q = layer.self.q + row, *d_z = layer.self.d_z + row;
        add_weighted(d_scores, stride, q, vector_stride, to - from, p.K, out + j * step);
        add_weighted(used + weight, stride, d_z, vector_stride, to - from, p.K, out + HK + j * step);
      }
    }
  }

  void add_weighted_n(i64 n, const real* w, i64 w_stride, const real* rows, i64 stride, i64 count, real* out,
                      i64 step) {
    switch (n) {
      case 1: return add_weighted(w, w_stride, rows, stride, count, p.K, out);
      case 2: return add_weighted_slots<real, 2>(w, w_stride, rows, stride, count, p.K, out, step);
      case 3: return add_weighted_slots<real, 3>(w, w_stride, rows, stride, count, p.K, out, step);
      case 4: return add_weighted_slots<real, 4>(w, w_stride, rows, stride, count, p.K, out, step);
      case 5: return add_weighted_slots<real, 5>(w, w_stride, rows, stride, count, p.K, out, step);
      default: return add_weighted_slots<real, 6>(w, w_stride, rows, stride, count, p.K, out, step);
    }
  }

  void layer_backward(const Layer<real>& layer, i64 t) {
    const i64 D = p.D, HK = p.H * p.K, F = p.F;
    output_backward(layer.feed, t);
    wait();
    real* inner = layer.d_inner + in_block(t, F);
    multiply_columns(F, D, layer.feed.d_out + in_block(t, D), layer.outer.backward, inner);
    relu_backward(layer, t, inner);
    wait();
    multiply_columns(D, F, inner, layer.inner.backward, grad);
    wait();
    input_backward(layer.feed, t);
    if (layer.source.q) {
      output_backward(layer.cross, t);
      wait();
      multiply_columns(HK, D, layer.cross.d_out + in_block(t, D), layer.source.out.backward,
                       layer.source.d_z + in_block(t, HK));
      wait();
      attend_source_backward(layer, t);
      wait();
      multiply_columns(D, HK, layer.source.d_query + in_block(t, HK), layer.source.query.backward, grad);
      wait();
      input_backward(layer.cross, t);
    }
    output_backward(layer.attention, t);
    wait();
    multiply_columns(HK, D, layer.attention.d_out + in_block(t, D), layer.self.out.backward, layer.self.d_z + at(t, HK));
    wait();
    attend_backward(layer, t);
    wait();
    multiply_columns(D, HK, layer.self.d_query + in_block(t, HK), layer.self.query.backward, grad);
    if (p.attend_to_current)
      multiply_columns(D, 2 * HK, layer.d_current_kv + in_block(t, 2 * HK),
                       p.groups[layer.kv_group].project.backward, grad, grad);
    wait();
    input_backward(layer.attention, t);
  }

  void output_backward(const Sublayer<real>& sub, i64 t) {
    const Range own = rows();
    const i64 first = own.first * p.D, n = own.size() * p.D;
    if (!p.pre_norm) {
      copy(dx + first, sub.d_normed + in_block(t, p.D) + first, n);
      for (i64 r = own.first; r < own.last; ++r)
        for (i64 d = 0; d < p.D; ++d) grad[r * p.D + d] = dx[r * p.D + d] * sub.scale[d];
      zero(dx + first, n);
      standardize_backward(grad + first, sub.normed + at(t, p.D) + first, sub.rstd + at(t, 1) + own.first, own.size(), p.D,
                           dx + first);
    }
    real* out = sub.d_out + in_block(t, p.D);
    copy(dx + first, out + first, n);
    if (sub.mask) drop(sub, t, out, own, {0, p.D});
  }

  void input_backward(const Sublayer<real>& sub, i64 t) {
    const Range own = rows();
    const i64 first = own.first * p.D;
    if (p.pre_norm)
      standardize_backward(grad + first, sub.input + at(t, p.D) + first, sub.rstd + at(t, 1) + own.first, own.size(), p.D,
                           dx + first);
    else
      add(1, grad + first, dx + first, own.size() * p.D);
  }

  void relu_backward(const Layer<real>& layer, i64 t, real* inner) {
    const real* active = layer.active + at(t, p.F);
    const real factor = layer.relu_mask ? p.relu_factor : 1;
    const Range own = columns(p.F);
    for (i64 r = 0; r < M; ++r)
      for (i64 n = r * p.F + own.first; n < r * p.F + own.last; ++n) inner[n] = active[n] <= 0 ? 0 : inner[n] * factor;
  }

  void attend_backward(const Layer<real>& layer, i64 t) {
    const i64 HK = p.H * p.K, P = p.T + p.R, width = layer.width, current = p.attend_to_current;
    const KVGroup<real>& group = p.groups[layer.kv_group];
    const Range own = pairs();
    for (i64 r = own.first / p.H; r < M && r * p.H < own.last; ++r)
      for (i64 h = max(0, own.first - r * p.H); h < min(p.H, own.last - r * p.H); ++h) {
        const i64 b = b0 + r, n = visible_slots(layer, b, h, t), first = ((b * p.H + h) * P + p.T - t) * p.K;
        const i64 head = at(t, HK) + r * HK + h * p.K, pair = r * 2 * HK + h * p.K;
        const real* d_z = layer.self.d_z + head;
        const real* current_kv = current ? layer.current_kv + at(t, 2 * HK) + pair : nullptr;
        real *query = layer.self.d_query + in_block(t, HK) + r * HK + h * p.K, *grads = scores + (r * p.H + h) * score_row(p);
        zero(grads, n + current);
        if (current_kv) dots(d_z, current_kv + HK, 1, p.K, grads);
        with_kv(group, [&](const auto*, const auto* values) { dots(d_z, values + first, n, p.K, grads + current); });
        const i64 weight = ((t * p.B + b) * p.H + h) * width;
        real* gradients = layer.self.d_scores + weight;
        softmax_backward(layer.self, b, h, t, grads, n + current, width, gradients);
        zero(query, p.K);
        if (current_kv) add_weighted(gradients, 1, current_kv, 0, 1, p.K, query);
        with_kv(group, [&](const auto* keys, const auto*) {
          add_weighted(gradients + current, 1, keys + first, p.K, n, p.K, query);
        });
        if (current_kv) current_kv_backward(layer, head, in_block(t, 2 * HK) + pair, gradients[0], weight);
      }
    real* query = layer.self.d_query + in_block(t, HK) + own.first * p.K;
    const real* d_scores = layer.self.d_scores + at(t, p.H * width) + own.first * width;
    multiply(own.size(), p.K, width, d_scores, width, p.position_backward, query, p.K, query, p.K);
  }

  // Gradients of the token's own key and value.
  void current_kv_backward(const Layer<real>& layer, i64 head, i64 pair, real gradient, i64 weight) {
    const real used = (layer.self.mask ? layer.self.used : layer.self.weights)[weight];
    real *key = layer.d_current_kv + pair, *value = key + p.H * p.K;
    for (i64 k = 0; k < p.K; ++k) {
      key[k] = gradient * layer.self.q[head + k];
      value[k] = used * layer.self.d_z[head + k];
    }
  }

  // Compute gradients of the scores from those of the used weights, zero beyond the n visible slots.
  void softmax_backward(const Attention<real>& heads, i64 b, i64 h, i64 t, real* grads, i64 n, i64 width,
                        real* d_scores) {
    const real* weights = heads.weights + ((t * p.B + b) * p.H + h) * width;
    real along = 0;
    if (heads.mask) {
      const bool* mask = heads.mask + ((b * p.H + h) * p.T + t) * heads.mask_width;
      for (i64 j = 0; j < n; ++j) grads[j] *= mask[j] * p.attention_factor;
    }
#pragma omp simd reduction(+ : along)
    for (i64 j = 0; j < n; ++j) along += weights[j] * grads[j];
    for (i64 j = 0; j < n; ++j) d_scores[j] = weights[j] * (grads[j] - along);
    zero(d_scores + n, width - n);
  }

  void attend_source_backward(const Layer<real>& layer, i64 t) {
    const i64 HK = p.H * p.K, J = p.J;
    const Range own = pairs();
    for (i64 pair = own.first; pair < own.last; ++pair) {
      const i64 h = pair % p.H, b = b0 + pair / p.H, head = in_block(t, HK) + pair * p.K;
      const i64 first = (b * p.H + h) * J * p.K;
      real *gradients = layer.source.d_scores + in_block(t, p.H * J) + pair * J, *grads = scores + pair * score_row(p);
      zero(grads, J);
      dots(layer.source.d_z + head, layer.source_values + first, J, p.K, grads);
      softmax_backward(layer.source, b, h, t, grads, J, J, gradients);
      zero(layer.source.d_query + head, p.K);
      add_weighted(gradients, 1, layer.source_keys + first, p.K, J, p.K, layer.source.d_query + head);
    }
  }
};
