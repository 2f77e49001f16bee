// The loops over the steps of a Staircase, for a tile of the batch. Included after forward.h and backward.h, whose
// norms and products they share. A layer processes a step's tokens one after another, so its parameters stay in cache.
// Backward goes from the last token to the first, so the gradients of a token's own key and value are complete when it
// is reached. Scores, weights, positions and ramps are ordered from the farthest distance to the nearest: what is
// visible is a suffix.

template <class real>
i64 staircase_workspace(const Plan<real>& p, const StaircasePlan<real>& staircase, i64 batch) {
  i64 t = 0;
  for (i64 s = 0; s < staircase.S; ++s) t = max(t, staircase.steps[s].tokens);
  return Tile<real>::workspace(p, batch) + batch * (t * p.D + p.H * p.K);
}

// Indices that both directions need.
template <class real>
struct VisibleRange {
  const Plan<real>& p;
  const StaircasePlan<real>& staircase;

  i64 W() const { return p.R + p.attend_to_current; }

  // Number of slots that token i of a step attends to, with itself, limited by its stream's start and its head's span.
  i64 visible_slots(const StaircaseStep& step, const Layer<real>& layer, i64 b, i64 h, i64 i) const {
    i64 n = min(step.visible(i), p.since_start[b * staircase.T + step.start + i] + 1);
    if (layer.ramp)
      while (n > 1 && !(layer.ramp[h * W() + W() - n] > 0)) --n;
    return n;
  }

  // Offset of the farthest of n slots visible to token i, in a layer's keys or values.
  i64 farthest(const StaircaseStep& step, i64 b, i64 h, i64 i, i64 n) const {
    return ((b * p.H + h) * staircase.slots + step.context() + i + 1 - n) * p.K;
  }

  // Dropout mask of the attention of token i, by distance; null without dropout.
  const bool* mask(const StaircaseStep& step, i64 a, i64 b, i64 h, i64 i) const {
    const bool* of = staircase.attention_masks[staircase.pass[step.offset + i] * p.A + a];
    return of ? of + ((b * p.H + h) * staircase.T + step.start + i) * staircase.mask_width : nullptr;
  }

  // Write keys and values (n, 2HK) of one stream to positions first .. first + n - 1.
  void write_kv(const real* kv, i64 n, const KVGroup<real>& group, i64 b, i64 first) const {
    const i64 HK = p.H * p.K;
    for (i64 j = 0; j < n; ++j)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 offset = ((b * p.H + h) * staircase.slots + first + j) * p.K;
        __builtin_memcpy(group.keys + offset, kv + j * 2 * HK + h * p.K, p.K * sizeof(real));
        __builtin_memcpy(group.values + offset, kv + j * 2 * HK + HK + h * p.K, p.K * sizeof(real));
      }
  }

  // The inverse for gradients.
  void read_kv_gradients(i64 a, i64 b, i64 first, i64 n, real* kv) const {
    const i64 HK = p.H * p.K;
    for (i64 j = 0; j < n; ++j)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 offset = ((b * p.H + h) * staircase.slots + first + j) * p.K;
        __builtin_memcpy(kv + j * 2 * HK + h * p.K, staircase.d_keys[a] + offset, p.K * sizeof(real));
        __builtin_memcpy(kv + j * 2 * HK + HK + h * p.K, staircase.d_values[a] + offset, p.K * sizeof(real));
      }
  }

  // Write keys and values from before the call behind the cached ones.
  void write_pass_kv(const StaircaseStep& step, i64 a, i64 b) const {
    const real* kv = staircase.pass_kv[a] + (b * staircase.O + step.pass_kv_first) * 2 * p.H * p.K;
    write_kv(kv, step.pass_kv_last - step.pass_kv_first, p.groups[p.layers[a].kv_group], b, step.cache_last);
  }
};

template <class real>
struct StaircaseForward : Forward<real> {
  using Forward<real>::p;
  using Forward<real>::b0;
  using Forward<real>::M;
  using Forward<real>::scores;
  using Forward<real>::x;
  using Forward<real>::kv;
  using Forward<real>::at;
  using Forward<real>::copy;
  using Forward<real>::zero;
  using Forward<real>::score_row;
  using Forward<real>::sublayer_input;
  using Forward<real>::sublayer_output;
  using Forward<real>::product;
  using Forward<real>::relu;

  const StaircasePlan<real>& staircase;
  const VisibleRange<real> range;

  StaircaseForward(const Plan<real>& plan, const StaircasePlan<real>& staircase, i64 first, i64 last, real* work)
      : Forward<real>(plan, first, last, work), staircase(staircase), range{plan, staircase} {}

  void run() {
    i64 cached = 0, done = 0, before = 0;
    for (i64 s = 0; s < staircase.S; ++s) {
      const StaircaseStep& step = staircase.steps[s];
      for (i64 i = 0; i < step.tokens; ++i) {
        const bool enters = i >= step.tokens - step.entering;
        const real* from = enters ? p.x + at(step.start + i, p.D) : staircase.layer_outputs[p.A] + at(before + i, p.D);
        copy(from, staircase.layer_outputs[0] + at(step.offset + i, p.D), M * p.D);
      }
      cached = load_cache(step, cached);
      for (i64 a = 0; a < p.A; ++a) {
        for (i64 b = b0; b < b0 + M; ++b) range.write_pass_kv(step, a, b);
        for (i64 i = 0; i < step.tokens; ++i) layer_forward(step, a, i);
      }
      for (i64 i = 0; i < step.leaving; ++i)
        copy(staircase.layer_outputs[p.A] + at(step.offset + i, p.D), p.y + at(done + i, p.D), M * p.D);
      for (i64 i = 0; i < step.leaving; ++i) append_to_cache(done + i);
      done += step.leaving;
      before = step.offset + step.leaving;
    }
  }

  // Write keys and values of the state's cache once they become visible. Before that, a step stores its own ones there.
  i64 load_cache(const StaircaseStep& step, i64 cached) {
    const i64 last = min(step.cache_last, staircase.cached_before), width = 2 * p.H * p.K;
    if (cached >= last) return cached;
    for (i64 s = 0; s < p.n_groups; ++s)
      for (i64 b = b0; b < b0 + M; ++b) {
        const real* cached_kv = p.groups[s].state_kv + (b * staircase.cached_before + cached) * width;
        range.write_kv(cached_kv, last - cached, p.groups[s], b, cached);
      }
    return last;
  }

  void append_to_cache(i64 token) {
    if (token >= staircase.cached_now) return;
    const i64 D = p.D, HK = p.H * p.K;
    const real* final = (staircase.caches_input ? p.x : p.y) + at(token, D);
    real* input = p.memory_input + at(token, D);
    if (p.pre_norm)
      standardize(final, M, D, p.eps, input, p.memory_rstd + at(token, 1));
    else
      copy(final, input, M * D);
    for (i64 s = 0; s < p.n_groups; ++s) {
      product(p.groups[s].project, D, 2 * HK, input, kv);
      for (i64 r = 0; r < M; ++r)
        range.write_kv(kv + r * 2 * HK, 1, p.groups[s], b0 + r, staircase.cached_before + token);
    }
  }

  void layer_forward(const StaircaseStep& step, i64 a, i64 i) {
    const Layer<real>& layer = p.layers[a];
    const i64 D = p.D, HK = p.H * p.K, token = step.offset + i, k = p.needs_gradient ? token : i;
    const real* from = staircase.layer_outputs[a] + at(token, D);
    real* to = staircase.layer_outputs[a + 1] + at(token, D);
    attend(step, a, i, k, sublayer_input(layer.attention, k, from));
    product(layer.self.out, HK, D, layer.self.z + at(k, HK), x, from);
    sublayer_output(layer.attention, k, x);
    const real* input = sublayer_input(layer.feed, k, x);
    real* active = layer.active + at(k, p.F);
    product(layer.inner, D, p.F, input, active);
    const bool* mask = staircase.relu_masks[staircase.pass[token] * p.A + a];
    relu(mask ? mask + (b0 * staircase.T + step.start + i) * p.F : nullptr, staircase.T, active);
    product(layer.outer, p.F, D, active, to, x);
    sublayer_output(layer.feed, k, to);
  }


  void attend(const StaircaseStep& step, i64 a, i64 i, i64 k, const real* input) {
    const Layer<real>& layer = p.layers[a];
    const KVGroup<real>& group = p.groups[layer.kv_group];
    const i64 HK = p.H * p.K, W = range.W(), row = score_row(p);
    real *q = layer.self.q + at(k, HK), *current_kv = layer.current_kv + at(k, 2 * HK);
    product(layer.self.query, p.D, HK, input, q);
    product(group.project, p.D, 2 * HK, input, current_kv);
    for (i64 r = 0; r < M; ++r) range.write_kv(current_kv + r * 2 * HK, 1, group, b0 + r, step.context() + i);
    multiply(M * p.H, W, p.K, q, p.K, p.position_forward, scores, row);
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 b = b0 + r, n = range.visible_slots(step, layer, b, h, i), first = range.farthest(step, b, h, i, n);
        real* score = scores + (r * p.H + h) * row + W - n;
        real* z = layer.self.z + at(k, HK) + r * HK + h * p.K;
        dots(q + r * HK + h * p.K, group.keys + first, n, p.K, score);
        const bool* mask = range.mask(step, a, b, h, i);
        const real* used = attention_weights(layer, mask, h, ((k * p.B + b) * p.H + h) * W, score, n);
        zero(z, p.K);
        add_weighted(used, 1, group.values + first, p.K, n, p.K, z);
      }
  }

  // Compute attention weights from scores, zero where nothing is visible. Return the n visible ones after dropout.
  const real* attention_weights(const Layer<real>& layer, const bool* mask, i64 h, i64 offset, real* score, i64 n) {
    const i64 W = range.W();
    real* weights = layer.self.weights + offset;
    zero(weights, W - n);
    softmax(score, n, layer.ramp ? layer.ramp + h * W + W - n : nullptr, weights + W - n);
    if (!mask) return weights + W - n;
    real* used = layer.self.used + offset;
    zero(used, W - n);
    for (i64 j = 0; j < n; ++j) used[W - n + j] = weights[W - n + j] * (mask[n - 1 - j] * p.attention_factor);
    return used + W - n;
  }
};

template <class real>
struct StaircaseBackward : Backward<real> {
  using Backward<real>::p;
  using Backward<real>::b0;
  using Backward<real>::M;
  using Backward<real>::scores;
  using Backward<real>::grad;
  using Backward<real>::dx;
  using Backward<real>::kv;
  using Backward<real>::at;
  using Backward<real>::copy;
  using Backward<real>::zero;
  using Backward<real>::add;
  using Backward<real>::in_block;
  using Backward<real>::output_backward;
  using Backward<real>::input_backward;
  using Backward<real>::relu_backward;

  const StaircasePlan<real>& staircase;
  const VisibleRange<real> range;
  real* gradients;  // (tokens, M, D): of the step's tokens at the current layer
  real* d_z;        // (M, HK)

  StaircaseBackward(const Plan<real>& plan, const StaircasePlan<real>& staircase, i64 first, i64 last, real* work)
      : Backward<real>(plan, first, last, work), staircase(staircase), range{plan, staircase} {
    d_z = work + Tile<real>::workspace(plan, M);
    gradients = d_z + M * p.H * p.K;
  }

  void run() {
    i64 done = 0;  // tokens that have left before step s
    for (i64 s = 0; s < staircase.last_step; ++s) done += staircase.steps[s].leaving;
    for (i64 s = staircase.last_step - 1; s >= staircase.first_step; --s) {
      const StaircaseStep& step = staircase.steps[s];
      done -= step.leaving;
      finish_cache_gradients(step.cache_last, staircase.steps[min(s + 1, staircase.S - 1)].cache_last);
      for (i64 i = step.leaving; i < step.tokens; ++i)
        copy(staircase.d_next + at(i - step.leaving, p.D), gradients + i * M * p.D, M * p.D);
      for (i64 i = 0; i < step.leaving; ++i) {
        real* to = gradients + i * M * p.D;
        copy(p.d_y + at(done + i, p.D), to, M * p.D);
        if (!staircase.caches_input) grad_from_cache(done + i, to);
      }
      if (staircase.caches_input)
        for (i64 i = 0; i < step.leaving; ++i) grad_from_cache(done + i, p.d_x + at(done + i, p.D));
      for (i64 a = p.A - 1; a >= 0; --a) {
        prepare_layer(step, a);
        for (i64 i = step.tokens - 1; i >= 0; --i) layer_backward(step, a, i);
        for (i64 b = b0; b < b0 + M && step.pass_kv_first < step.pass_kv_last; ++b) {
          real* d_kv = staircase.d_pass_kv[a] + (b * staircase.O + step.pass_kv_first) * 2 * p.H * p.K;
          range.read_kv_gradients(a, b, step.cache_last, step.pass_kv_last - step.pass_kv_first, d_kv);
        }
      }
      for (i64 i = 0; i < step.tokens; ++i) {
        real* from = gradients + i * M * p.D;
        grad_from_state(0, step, i, from);
        copy(from, staircase.d_next + at(i, p.D), M * p.D);
        if (i >= step.tokens - step.entering) add(1, from, p.d_x + at(step.start + i, p.D), M * p.D);
      }
    }
    if (staircase.first_step == 0) finish_cache_gradients(0, staircase.steps[0].cache_last);
  }

  void grad_from_state(i64 l, const StaircaseStep& step, i64 i, real* to) {
    if (staircase.grad_from_state[l]) add(1, staircase.grad_from_state[l] + at(step.offset + i, p.D), to, M * p.D);
  }

  // Cache positions first .. last - 1 are not visible to earlier steps: their gradients are complete.
  void finish_cache_gradients(i64 first, i64 last) {
    const i64 width = 2 * p.H * p.K;
    for (i64 a = 0; a < p.A; ++a)
      for (i64 position = first; position < last; ++position)
        for (i64 b = b0; b < b0 + M; ++b) {
          const KVGroup<real>& group = p.groups[p.layers[a].kv_group];
          const i64 before = staircase.cached_before, token = position - before;
          real* d_kv = token < 0 ? group.d_state_kv + (b * before + position) * width
                                 : group.d_new_kv + (token * p.B + b) * width;
          range.read_kv_gradients(a, b, position, 1, d_kv);
        }
  }

  // Add the gradient of a token's final output through the cache.
  void grad_from_cache(i64 token, real* to) {
    if (token >= staircase.cached_now) return;
    const i64 D = p.D, width = 2 * p.H * p.K;
    zero(grad, M * D);
    for (i64 s = 0; s < p.n_groups; ++s) {
      const KVGroup<real>& group = p.groups[s];
      multiply(M, D, width, group.d_new_kv + at(token, width), width, group.project.backward, grad, D, grad, D);
    }
    if (p.pre_norm)
      standardize_backward(grad, p.memory_input + at(token, D), p.memory_rstd + at(token, 1), M, D, to);
    else
      add(1, grad, to, M * D);
  }

  // Restore the keys and values of forward, and zero the gradients of those that are not cached.
  void prepare_layer(const StaircaseStep& step, i64 a) {
    const i64 width = 2 * p.H * p.K, n = (step.context() + step.tokens - step.cache_last) * p.K;
    const Layer<real>& layer = p.layers[a];
    for (i64 b = b0; b < b0 + M; ++b) {
      range.write_pass_kv(step, a, b);
      for (i64 i = 0; i < step.tokens; ++i) {
        const real* current_kv = layer.current_kv + ((step.offset + i) * p.B + b) * width;
        range.write_kv(current_kv, 1, p.groups[layer.kv_group], b, step.context() + i);
      }
      for (i64 h = 0; h < p.H; ++h) {
        const i64 offset = ((b * p.H + h) * staircase.slots + step.cache_last) * p.K;
        zero(staircase.d_keys[a] + offset, n);
        zero(staircase.d_values[a] + offset, n);
      }
    }
  }

  void layer_backward(const StaircaseStep& step, i64 a, i64 i) {
    const Layer<real>& layer = p.layers[a];
    const i64 D = p.D, HK = p.H * p.K, F = p.F, token = step.offset + i;
    real* tile_dx = dx;
    dx = gradients + i * M * D;
    grad_from_state(a + 1, step, i, dx);
    output_backward(layer.feed, token);
    real* inner = layer.d_inner + in_block(token, F);
    multiply(M, F, D, dx, D, layer.outer.backward, inner, F);
    relu_backward(layer, token, inner);
    multiply(M, D, F, inner, F, layer.inner.backward, grad, D);
    input_backward(layer.feed, token);
    output_backward(layer.attention, token);
    multiply(M, HK, D, dx, D, layer.self.out.backward, d_z, HK);
    attend_backward(step, a, i);
    multiply(M, D, HK, layer.self.d_query + in_block(token, HK), HK, layer.self.query.backward, grad, D);
    const Packed<real>& project = p.groups[layer.kv_group].project.backward;
    multiply(M, D, 2 * HK, layer.d_current_kv + in_block(token, 2 * HK), 2 * HK, project, grad, D, grad, D);
    input_backward(layer.attention, token);
    dx = tile_dx;
  }

  void attend_backward(const StaircaseStep& step, i64 a, i64 i) {
    const Layer<real>& layer = p.layers[a];
    const KVGroup<real>& group = p.groups[layer.kv_group];
    const i64 HK = p.H * p.K, K = p.K, W = range.W(), token = step.offset + i;
    real *query = layer.self.d_query + in_block(token, HK), *d_scores = layer.self.d_scores + in_block(token, p.H * W);
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 b = b0 + r, n = range.visible_slots(step, layer, b, h, i), first = range.farthest(step, b, h, i, n);
        const i64 head = r * HK + h * K, weight = ((token * p.B + b) * p.H + h) * W + W - n;
        const bool* mask = range.mask(step, a, b, h, i);
        const real* used = (mask ? layer.self.used : layer.self.weights) + weight;
        real* gradient = d_scores + (r * p.H + h) * W;
        zero(scores, n);
        dots(d_z + head, group.values + first, n, K, scores);
        zero(gradient, W - n);
        softmax_backward(layer.self.weights + weight, mask, n, gradient + W - n);
        zero(query + head, K);
        add_weighted(gradient + W - n, 1, group.keys + first, K, n, K, query + head);
        add_outer_product(gradient + W - n, layer.self.q + at(token, HK) + head, n, staircase.d_keys[a] + first);
        add_outer_product(used, d_z + head, n, staircase.d_values[a] + first);
      }
    multiply(M * p.H, K, W, d_scores, W, p.position_backward, query, K, query, K);
    real* d_current_kv = layer.d_current_kv + in_block(token, 2 * HK);
    for (i64 r = 0; r < M; ++r)
      range.read_kv_gradients(a, b0 + r, step.context() + i, 1, d_current_kv + r * 2 * HK);
  }

  // Compute gradients of the scores from those of the used weights, which are in `scores`.
  void softmax_backward(const real* weights, const bool* mask, i64 n, real* gradient) {
    real* grads = scores;
    if (mask)
      for (i64 j = 0; j < n; ++j) grads[j] *= mask[n - 1 - j] * p.attention_factor;
    real along = 0;
#pragma omp simd reduction(+ : along)
    for (i64 j = 0; j < n; ++j) along += weights[j] * grads[j];
    for (i64 j = 0; j < n; ++j) gradient[j] = weights[j] * (grads[j] - along);
  }

  // to[j] += w[j] x for n rows.
  void add_outer_product(const real* w, const real* x, i64 n, real* to) {
    for (i64 j = 0; j < n; ++j, to += p.K)
      for (i64 k = 0; k < p.K; ++k) to[k] += w[j] * x[k];
  }
};
