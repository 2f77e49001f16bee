// The loops over the diagonals of a Staircase's call, for a tile of rows. Included after forward.h and backward.h, whose
// norms and products they share. A layer takes a diagonal's tokens one after another, so its weights stay in cache, and
// on the way back a token's own key and value are complete when it is reached.
// Scores, weights, positions and ramps of W distances have the farthest first: what is seen is a suffix.

template <class real>
i64 climb_workspace(const Plan<real>& p, const Stairs<real>& stairs, i64 rows) {
  i64 t = 0;
  for (i64 s = 0; s < stairs.S; ++s) t = most(t, stairs.diagonals[s].t);
  return Tile<real>::workspace(p, rows) + rows * (t * p.D + p.H * p.K);
}

// What both directions ask about a diagonal; `Loop` is the tile.
template <class real>
struct VisibleRange {
  const Plan<real>& p;
  const Stairs<real>& stairs;

  i64 W() const { return p.R + p.itself; }

  // How many slots token i of a diagonal sees, itself included: no farther than its row's start and its head's span.
  i64 visible_slots(const Diagonal& d, const Layer<real>& layer, i64 b, i64 h, i64 i) const {
    i64 n = least(d.slots(i), p.age[b * stairs.T + d.begin + i] + 1);
    if (layer.ramp)
      while (n > 1 && !(layer.ramp[h * W() + W() - n] > 0)) --n;
    return n;
  }

  // Where the farthest of n slots seen by token i lies among a layer's keys or values of a row and head.
  i64 farthest(const Diagonal& d, i64 b, i64 h, i64 i, i64 n) const {
    return ((b * p.H + h) * stairs.slots + d.known() + i + 1 - n) * p.K;
  }

  // What dropout keeps of the attention of token i, by distance; null if all.
  const bool* kept(const Diagonal& d, i64 a, i64 b, i64 h, i64 i) const {
    const bool* of = stairs.kept[stairs.pass[d.place + i] * p.A + a];
    return of ? of + ((b * p.H + h) * stairs.T + d.begin + i) * stairs.kept_width : nullptr;
  }

  // Keys and values (slots, 2HK) of one row into places first .. first + n - 1.
  void put(const real* pairs, i64 n, const Set<real>& set, i64 b, i64 first) const {
    const i64 HK = p.H * p.K;
    for (i64 j = 0; j < n; ++j)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 place = ((b * p.H + h) * stairs.slots + first + j) * p.K;
        __builtin_memcpy(set.keys + place, pairs + j * 2 * HK + h * p.K, p.K * sizeof(real));
        __builtin_memcpy(set.values + place, pairs + j * 2 * HK + HK + h * p.K, p.K * sizeof(real));
      }
  }

  // The inverse, for gradients.
  void take(i64 a, i64 b, i64 first, i64 n, real* pairs) const {
    const i64 HK = p.H * p.K;
    for (i64 j = 0; j < n; ++j)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 place = ((b * p.H + h) * stairs.slots + first + j) * p.K;
        __builtin_memcpy(pairs + j * 2 * HK + h * p.K, stairs.d_keys[a] + place, p.K * sizeof(real));
        __builtin_memcpy(pairs + j * 2 * HK + HK + h * p.K, stairs.d_values[a] + place, p.K * sizeof(real));
      }
  }

  // What came before the call, after what is cached. Backward puts it there again.
  void put_old(const Diagonal& d, i64 a, i64 b) const {
    const i64 width = 2 * p.H * p.K;
    put(stairs.old[a] + (b * stairs.O + d.old_first) * width, d.old_last - d.old_first, p.set[p.layers[a].set], b,
        d.high);
  }
};

template <class real>
struct Climb : Forward<real> {
  using Forward<real>::p;
  using Forward<real>::b0;
  using Forward<real>::M;
  using Forward<real>::scores;
  using Forward<real>::x;
  using Forward<real>::pairs;
  using Forward<real>::at;
  using Forward<real>::copy;
  using Forward<real>::zero;
  using Forward<real>::score_row;
  using Forward<real>::enter;
  using Forward<real>::leave;
  using Forward<real>::product;

  const Stairs<real>& stairs;
  const VisibleRange<real> sight;

  Climb(const Plan<real>& plan, const Stairs<real>& stairs, i64 first, i64 last, real* work)
      : Forward<real>(plan, first, last, work), stairs(stairs), sight{plan, stairs} {}

  void run() {
    i64 cached = 0, done = 0, before = 0;
    for (i64 s = 0; s < stairs.S; ++s) {
      const Diagonal& d = stairs.diagonals[s];
      for (i64 i = 0; i < d.t; ++i) {
        const real* from = i < d.t - d.on ? stairs.levels[p.A] + at(before + i, p.D) : p.x + at(d.begin + i, p.D);
        copy(from, stairs.levels[0] + at(d.place + i, p.D), M * p.D);
      }
      cached = from_cache(d, cached);
      for (i64 a = 0; a < p.A; ++a) {
        for (i64 b = b0; b < b0 + M; ++b) sight.put_old(d, a, b);
        for (i64 i = 0; i < d.t; ++i) layer_forward(d, a, i);
      }
      for (i64 i = 0; i < d.off; ++i)
        copy(stairs.levels[p.A] + at(d.place + i, p.D), p.y + at(done + i, p.D), M * p.D);
      for (i64 i = 0; i < d.off; ++i) into_cache(done + i);
      done += d.off;
      before = d.place + d.off;
    }
  }

  // Keys and values that were cached before the call come to their places as soon as they are in sight, not before:
  // until then a diagonal's own lie there.
  i64 from_cache(const Diagonal& d, i64 cached) {
    const i64 high = least(d.high, stairs.before), width = 2 * p.H * p.K;
    if (cached >= high) return cached;
    for (i64 s = 0; s < p.sets; ++s)
      for (i64 b = b0; b < b0 + M; ++b)
        sight.put(p.set[s].old + (b * stairs.before + cached) * width, high - cached, p.set[s], b, cached);
    return high;
  }

  void into_cache(i64 token) {
    if (token >= stairs.now) return;
    const i64 D = p.D, HK = p.H * p.K;
    const real* final = (stairs.caches_input ? p.x : p.y) + at(token, D);
    real* input = p.memory_input + at(token, D);
    if (p.pre)
      standardize(final, M, D, p.eps, input, p.memory_rstd + at(token, 1));
    else
      copy(final, input, M * D);
    for (i64 s = 0; s < p.sets; ++s) {
      product(p.set[s].project, D, 2 * HK, input, pairs);
      for (i64 r = 0; r < M; ++r) sight.put(pairs + r * 2 * HK, 1, p.set[s], b0 + r, stairs.before + token);
    }
  }

  void layer_forward(const Diagonal& d, i64 a, i64 i) {
    const Layer<real>& layer = p.layers[a];
    const i64 D = p.D, HK = p.H * p.K, token = d.place + i, k = p.keep ? token : i;
    const real* from = stairs.levels[a] + at(token, D);
    real* to = stairs.levels[a + 1] + at(token, D);
    attend(d, a, i, k, enter(layer.attention, k, from));
    product(layer.self.out, HK, D, layer.self.read + at(k, HK), x, from);
    leave(layer.attention, k, x);
    const real* input = enter(layer.feed, k, x);
    real* active = layer.active + at(k, p.F);
    product(layer.inner, D, p.F, input, active);
    rectify(d, a, i, active);
    product(layer.outer, p.F, D, active, to, x);
    leave(layer.feed, k, to);
  }

  void rectify(const Diagonal& d, i64 a, i64 i, real* active) {
    const bool* of_pass = stairs.relu_kept[stairs.pass[d.place + i] * p.A + a];
    if (!of_pass) {
      for (i64 n = 0; n < M * p.F; ++n) active[n] = active[n] <= 0 ? 0 : active[n];
      return;
    }
    for (i64 r = 0; r < M; ++r) {
      const bool* kept = of_pass + ((b0 + r) * stairs.T + d.begin + i) * p.F;
      real* row = active + r * p.F;
      for (i64 f = 0; f < p.F; ++f) row[f] = (row[f] <= 0 ? 0 : row[f]) * (kept[f] * p.relu_factor);
    }
  }

  void attend(const Diagonal& d, i64 a, i64 i, i64 k, const real* input) {
    const Layer<real>& layer = p.layers[a];
    const Set<real>& set = p.set[layer.set];
    const i64 HK = p.H * p.K, W = sight.W(), row = score_row(p);
    real *q = layer.self.q + at(k, HK), *own = layer.own + at(k, 2 * HK);
    product(layer.self.query, p.D, HK, input, q);
    product(set.project, p.D, 2 * HK, input, own);
    for (i64 r = 0; r < M; ++r) sight.put(own + r * 2 * HK, 1, set, b0 + r, d.known() + i);
    multiply(M * p.H, W, p.K, q, p.K, p.position_forth, scores, row);
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 b = b0 + r, n = sight.visible_slots(d, layer, b, h, i), first = sight.farthest(d, b, h, i, n);
        real* score = scores + (r * p.H + h) * row + W - n;
        real* read = layer.self.read + at(k, HK) + r * HK + h * p.K;
        dots(q + r * HK + h * p.K, set.keys + first, n, p.K, score);
        const real* used = weigh(layer, sight.kept(d, a, b, h, i), h, ((k * p.B + b) * p.H + h) * W, score, n);
        zero(read, p.K);
        gather(used, 1, set.values + first, p.K, n, p.K, read);
      }
  }

  // Scores to weights, zero where nothing is seen; returns those of the n seen after dropout.
  const real* weigh(const Layer<real>& layer, const bool* kept, i64 h, i64 place, real* score, i64 n) {
    const i64 W = sight.W();
    real* weights = layer.self.weights + place;
    zero(weights, W - n);
    softmax(score, n, layer.ramp ? layer.ramp + h * W + W - n : nullptr, weights + W - n);
    if (!kept) return weights + W - n;
    real* used = layer.self.used + place;
    zero(used, W - n);
    for (i64 j = 0; j < n; ++j) used[W - n + j] = weights[W - n + j] * (kept[n - 1 - j] * p.attention_factor);
    return used + W - n;
  }
};

template <class real>
struct Descend : Backward<real> {
  using Backward<real>::p;
  using Backward<real>::b0;
  using Backward<real>::M;
  using Backward<real>::scores;
  using Backward<real>::grad;
  using Backward<real>::dx;
  using Backward<real>::pairs;
  using Backward<real>::at;
  using Backward<real>::copy;
  using Backward<real>::zero;
  using Backward<real>::add;
  using Backward<real>::in_block;
  using Backward<real>::leave_back;
  using Backward<real>::enter_back;
  using Backward<real>::rectify_back;

  const Stairs<real>& stairs;
  const VisibleRange<real> sight;
  real* gradients;  // (t, M, D): of the diagonal's tokens at the current level
  real* read;    // (M, HK)

  Descend(const Plan<real>& plan, const Stairs<real>& stairs, i64 first, i64 last, real* work)
      : Backward<real>(plan, first, last, work), stairs(stairs), sight{plan, stairs} {
    read = work + Tile<real>::workspace(plan, M);
    gradients = read + M * p.H * p.K;
  }

  void run() {
    i64 done = 0;  // tokens that have stepped off before diagonal s
    for (i64 s = 0; s < stairs.last; ++s) done += stairs.diagonals[s].off;
    for (i64 s = stairs.last - 1; s >= stairs.first; --s) {
      const Diagonal& d = stairs.diagonals[s];
      done -= d.off;
      const i64 high = s + 1 < stairs.S ? stairs.diagonals[s + 1].high : d.high;
      out_of_cache(d.high, high);
      for (i64 i = d.off; i < d.t; ++i) copy(stairs.later + at(i - d.off, p.D), gradients + i * M * p.D, M * p.D);
      for (i64 i = 0; i < d.off; ++i) {
        real* to = gradients + i * M * p.D;
        copy(p.d_y + at(done + i, p.D), to, M * p.D);
        if (!stairs.caches_input) owed(done + i, to);
      }
      if (stairs.caches_input)
        for (i64 i = 0; i < d.off; ++i) owed(done + i, p.d_x + at(done + i, p.D));
      for (i64 a = p.A - 1; a >= 0; --a) {
        begin_layer(d, a);
        for (i64 i = d.t - 1; i >= 0; --i) layer_backward(d, a, i);
        for (i64 b = b0; b < b0 + M && d.old_first < d.old_last; ++b)
          sight.take(a, b, d.high, d.old_last - d.old_first,
                     stairs.d_old[a] + (b * stairs.O + d.old_first) * 2 * p.H * p.K);
      }
      for (i64 i = 0; i < d.t; ++i) {
        real* from = gradients + i * M * p.D;
        from_state(0, d, i, from);
        copy(from, stairs.later + at(i, p.D), M * p.D);
        if (i >= d.t - d.on) add(1, from, p.d_x + at(d.begin + i, p.D), M * p.D);
      }
    }
    if (stairs.first == 0) out_of_cache(0, stairs.diagonals[0].high);
  }

  void from_state(i64 level, const Diagonal& d, i64 i, real* to) {
    if (stairs.extra[level]) add(1, stairs.extra[level] + at(d.place + i, p.D), to, M * p.D);
  }

  // Places first .. last - 1 leave the cache's sight: nobody else adds to their keys and values.
  void out_of_cache(i64 first, i64 last) {
    const i64 width = 2 * p.H * p.K;
    for (i64 a = 0; a < p.A; ++a)
      for (i64 place = first; place < last; ++place)
        for (i64 b = b0; b < b0 + M; ++b) {
          const Set<real>& set = p.set[p.layers[a].set];
          const i64 token = place - stairs.before;
          sight.take(a, b, place, 1,
                     token < 0 ? set.d_old + (b * stairs.before + place) * width : set.d_new + (token * p.B + b) * width);
        }
  }

  // Add what those who saw a token in the cache owe to it.
  void owed(i64 token, real* to) {
    if (token >= stairs.now) return;
    const i64 D = p.D, width = 2 * p.H * p.K;
    zero(grad, M * D);
    for (i64 s = 0; s < p.sets; ++s)
      multiply(M, D, width, p.set[s].d_new + at(token, width), width, p.set[s].project.back, grad, D, grad, D);
    if (p.pre)
      standardize_back(grad, p.memory_input + at(token, D), p.memory_rstd + at(token, 1), M, D, to);
    else
      add(1, grad, to, M * D);
  }

  // Keys and values as forward had them, and room for the gradients of those that are not cached.
  void begin_layer(const Diagonal& d, i64 a) {
    const i64 width = 2 * p.H * p.K;
    const Layer<real>& layer = p.layers[a];
    for (i64 b = b0; b < b0 + M; ++b) {
      sight.put_old(d, a, b);
      for (i64 i = 0; i < d.t; ++i)
        sight.put(layer.own + ((d.place + i) * p.B + b) * width, 1, p.set[layer.set], b, d.known() + i);
      for (i64 h = 0; h < p.H; ++h) {
        const i64 place = ((b * p.H + h) * stairs.slots + d.high) * p.K, n = (d.known() + d.t - d.high) * p.K;
        zero(stairs.d_keys[a] + place, n);
        zero(stairs.d_values[a] + place, n);
      }
    }
  }

  void layer_backward(const Diagonal& d, i64 a, i64 i) {
    const Layer<real>& layer = p.layers[a];
    const i64 D = p.D, HK = p.H * p.K, F = p.F, token = d.place + i;
    real* whole = dx;
    dx = gradients + i * M * D;
    from_state(a + 1, d, i, dx);
    leave_back(layer.feed, token);
    real* inner = layer.d_inner + in_block(token, F);
    multiply(M, F, D, dx, D, layer.outer.back, inner, F);
    rectify_back(layer, token, inner);
    multiply(M, D, F, inner, F, layer.inner.back, grad, D);
    enter_back(layer.feed, token);
    leave_back(layer.attention, token);
    multiply(M, HK, D, dx, D, layer.self.out.back, read, HK);
    attend_back(d, a, i);
    multiply(M, D, HK, layer.self.d_query + in_block(token, HK), HK, layer.self.query.back, grad, D);
    multiply(M, D, 2 * HK, layer.d_own + in_block(token, 2 * HK), 2 * HK, p.set[layer.set].project.back, grad, D, grad,
             D);
    enter_back(layer.attention, token);
    dx = whole;
  }

  void attend_back(const Diagonal& d, i64 a, i64 i) {
    const Layer<real>& layer = p.layers[a];
    const Set<real>& set = p.set[layer.set];
    const i64 HK = p.H * p.K, K = p.K, W = sight.W(), token = d.place + i;
    real *query = layer.self.d_query + in_block(token, HK), *given = layer.self.d_scores + in_block(token, p.H * W);
    for (i64 r = 0; r < M; ++r)
      for (i64 h = 0; h < p.H; ++h) {
        const i64 b = b0 + r, n = sight.visible_slots(d, layer, b, h, i), first = sight.farthest(d, b, h, i, n);
        const i64 head = r * HK + h * K, weight = ((token * p.B + b) * p.H + h) * W + W - n;
        const bool* kept = sight.kept(d, a, b, h, i);
        real* gradient = given + (r * p.H + h) * W;
        zero(scores, n);
        dots(read + head, set.values + first, n, K, scores);
        zero(gradient, W - n);
        softmax_back(layer.self.weights + weight, kept, n, gradient + W - n);
        zero(query + head, K);
        gather(gradient + W - n, 1, set.keys + first, K, n, K, query + head);
        push(gradient + W - n, layer.self.q + at(token, HK) + head, n, stairs.d_keys[a] + first);
        push((kept ? layer.self.used : layer.self.weights) + weight, read + head, n, stairs.d_values[a] + first);
      }
    multiply(M * p.H, K, W, given, W, p.position_back, query, K, query, K);
    for (i64 r = 0; r < M; ++r)
      sight.take(a, b0 + r, d.known() + i, 1, layer.d_own + in_block(token, 2 * HK) + r * 2 * HK);
  }

  // From the gradients of the used weights, in `scores`, to those of the scores.
  void softmax_back(const real* weights, const bool* kept, i64 n, real* gradient) {
    real* grads = scores;
    if (kept)
      for (i64 j = 0; j < n; ++j) grads[j] *= kept[n - 1 - j] * p.attention_factor;
    real along = 0;
#pragma omp simd reduction(+ : along)
    for (i64 j = 0; j < n; ++j) along += weights[j] * grads[j];
    for (i64 j = 0; j < n; ++j) gradient[j] = weights[j] * (grads[j] - along);
  }

  // Row j of `to` += w_j x.
  void push(const real* w, const real* x, i64 n, real* to) {
    for (i64 j = 0; j < n; ++j, to += p.K)
      for (i64 k = 0; k < p.K; ++k) to[k] += w[j] * x[k];
  }
};
