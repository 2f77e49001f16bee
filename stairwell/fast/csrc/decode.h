// The kernel of a decoding step. Included once per instruction set, inside namespace stairwell::STAIRWELL_ISA, after
// vector.h.
//
// A step is divided into parts, one per thread: a part has some heads of each attention and some inner rows of each
// feed-forward, and computes with them a summand of the sublayer's output. Every thread adds all summands to its own copy
// of the residual stream, so a sublayer needs one barrier, and each parameter is read once per step, by one thread.

enum Epilogue { STORE, RELU };

constexpr i64 AHEAD = 4096;  // bytes between a load of parameters and the prefetch beside it
constexpr i64 WARM = 16384;  // bytes of the next matrix that are prefetched before a barrier

// Fetch the first elements of what is read after a barrier.
ALWAYS_INLINE void warm(const char* p) {
  for (i64 i = 0; p && i < WARM; i += 64) __builtin_prefetch(p + i, 0, 0);
}

// out (vectors) = one panel of W times one stream. The parameters are read once, so they are prefetched, across the end
// of the panel from `next` on.
template <class real, class Stored, int vectors>
ALWAYS_INLINE void panel_stream(const Stored* w, i64 n, const real* x, const char* next, Vec<real>* out) {
  constexpr int W = LANES<real>, U = vectors >= 8 ? 1 : 8 / vectors;
  constexpr i64 depth = AHEAD / static_cast<i64>(PANEL_ROWS * sizeof(Stored));
  Vec<real> acc[U][vectors] = {};
  const char* ahead = reinterpret_cast<const char*>(w) + AHEAD;
  i64 k = 0;
  for (i64 until : {n - depth, n}) {
    for (; k + U <= until; k += U) {
      for (i64 i = 0; i < static_cast<i64>(U * PANEL_ROWS * sizeof(Stored)); i += 64) __builtin_prefetch(ahead + i, 0, 0);
      ahead += U * PANEL_ROWS * sizeof(Stored);
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) {
        const Vec<real> input = broadcast(x[k + u]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) acc[u][v] += load_as<real>(w + (k + u) * PANEL_ROWS + v * W) * input;
      }
    }
    ahead = next;
  }
  for (; k < n; ++k)
    for (int v = 0; v < vectors; ++v) acc[0][v] += load_as<real>(w + k * PANEL_ROWS + v * W) * x[k];
  for (int v = 0; v < vectors; ++v) {
    for (int u = 1; u < U; ++u) acc[0][v] += acc[u][v];
    out[v] = acc[0][v];
  }
}

// out (streams, vectors) = some vectors of rows of one panel of W times some streams.
template <class real, class Stored, int vectors, int streams>
ALWAYS_INLINE void panel_streams(const Stored* w, i64 n, const real* x, i64 ldx, Vec<real>* out) {
  constexpr int W = LANES<real>;
  Vec<real> acc[streams][vectors] = {};
  for (i64 k = 0; k < n; ++k) {
    Vec<real> weight[vectors];
    for (int v = 0; v < vectors; ++v) weight[v] = load_as<real>(w + k * PANEL_ROWS + v * W);
#pragma GCC unroll 8
    for (int b = 0; b < streams; ++b) {
      const Vec<real> input = broadcast(x[b * ldx + k]);
      for (int v = 0; v < vectors; ++v) acc[b][v] += weight[v] * input;
    }
  }
  for (int b = 0; b < streams; ++b)
    for (int v = 0; v < vectors; ++v) out[b * vectors + v] = acc[b][v];
}

// y (B, ldy) = W x for some rows and columns of W; x (B, ldx) starts at the first of these columns.
template <class real>
struct Product {
  const Matrix<real>& m;
  i64 first_row, last_row, first_column, last_column;
  const real* x;
  i64 ldx, B;
  real* y;
  i64 ldy;
  bool bias = true;
  Epilogue epilogue = STORE;
  const char* next = nullptr;  // what this thread reads afterwards

  void run() const { run_as(static_cast<real>(0)); }

 private:
  void run_as(float) const {
    switch (m.storage) {
      case Storage::BFLOAT16: return panels<uint16_t>();
      case Storage::INT8: return panels<int8_t>();
      default: return panels<float>();
    }
  }
  void run_as(double) const { panels<double>(); }

  template <class Stored>
  void panels() const {
    const i64 n = last_column - first_column;
    for (i64 row = first_row / PANEL_ROWS * PANEL_ROWS; row < last_row; row += PANEL_ROWS) {
      const Stored* w = static_cast<const Stored*>(m.data) + row * m.columns + first_column * PANEL_ROWS;
      const Stored* following = w + m.columns * PANEL_ROWS;
      const bool is_last = row + PANEL_ROWS >= last_row;
      panel(row, w, n, !is_last ? reinterpret_cast<const char*>(following) : next ? next : static_cast<const char*>(m.data));
    }
  }

  template <class Stored>
  void panel(i64 row, const Stored* w, i64 n, const char* following) const {
    constexpr int W = LANES<real>, ALL = PANEL_ROWS / W, ONE = ALL < 8 ? ALL : 8;
    constexpr int BLOCK = STAIRWELL_BYTES == 64 ? 8 : 6;
    if (B == 1) {
      for (int v = 0; v < ALL; v += ONE) {
        Vec<real> sums[ONE];
        panel_stream<real, Stored, ONE>(w + v * W, n, x, following, sums);
        put<1, ONE>(row + v * W, 0, sums);
      }
      return;
    }
    for (int v = 0; v < ALL; v += 2) {
      i64 b = 0;
      for (; b + BLOCK <= B; b += BLOCK) block<Stored, BLOCK>(row + v * W, w + v * W, n, b);
      for (; b + 4 <= B; b += 4) block<Stored, 4>(row + v * W, w + v * W, n, b);
      for (; b + 2 <= B; b += 2) block<Stored, 2>(row + v * W, w + v * W, n, b);
      if (b < B) block<Stored, 1>(row + v * W, w + v * W, n, b);
    }
  }

  template <class Stored, int streams>
  void block(i64 row, const Stored* w, i64 n, i64 b) const {
    Vec<real> sums[streams * 2];
    panel_streams<real, Stored, 2, streams>(w, n, x + b * ldx, ldx, sums);
    put<streams, 2>(row, b, sums);
  }

  // Store sums (streams, vectors) of the rows from `row` on. Scales and biases are padded like the panels.
  template <int streams, int vectors>
  __attribute__((always_inline)) void put(i64 row, i64 b, const Vec<real>* sums) const {
    constexpr int W = LANES<real>;
    for (int v = 0; v < vectors; ++v, row += W) {
      const Vec<real> scale = m.scale ? load(m.scale + row) : broadcast(static_cast<real>(1));
      const Vec<real> shift = bias && m.bias ? load(m.bias + row) : Vec<real>{};
      const bool whole = first_row <= row && row + W <= last_row;
      for (int s = 0; s < streams; ++s) {
        Vec<real> value = sums[s * vectors + v] * scale + shift;
        if (epilogue == RELU) value = value < 0 ? Vec<real>{} : value;  // keeps NaN
        real* to = y + (b + s) * ldy;
        if (whole) {
          store(to + row, value);
        } else {
          for (int i = 0; i < W; ++i)
            if (first_row <= row + i && row + i < last_row) to[row + i] = value[i];
        }
      }
    }
  }
};

// Consecutive ring positions that a token attends to: n positions from `at`; `column` is that of the first distance.
struct RingSlice {
  i64 ring, at, n, column;
};

template <class real>
class Decode {
 public:
  Decode(const Step<real>& step, const StepCall<real>& call, Barrier& barrier, i64 thread, i64 threads, real* scratch)
      : s(step), c(call), barrier(barrier), thread(thread), threads(threads), B(call.B), D(step.D), H(step.H), K(step.K),
        whole_heads(step.H % call.parts == 0) {
    vectors = scratch;
    normed = vectors + (s.A + 1 + s.G) * B * D;
    scores = normed + B * D;
  }

  static constexpr int ROWS = 4;  // of keys that are read together

  static i64 scratch(const Step<real>& s, i64 B, i64 positions) {
    return (s.A + 2 + s.G) * B * s.D + positions + 2 * LANES<real> + 64;
  }

  void run() {
    for (i64 i = 0; i < B * D; ++i) vectors[i] = c.x[i];
    for (i64 a = 0; a < s.A; ++a) apply(a);
    write_final_rings();
    write_raw();
    predict();
  }

 private:
  real* vector(i64 v) const { return vectors + v * B * D; }

  // Half-open ranges of a part: elements, rows in whole panels, rows of queries, keys and values.
  struct Range {
    i64 first, last;
  };
  Range share(i64 n, i64 part) const { return {n * part / c.parts, n * (part + 1) / c.parts}; }
  Range rows(i64 n, i64 part) const {
    const Range panels = share((n + PANEL_ROWS - 1) / PANEL_ROWS, part);
    return {min(n, panels.first * PANEL_ROWS), min(n, panels.last * PANEL_ROWS)};
  }
  Range head_rows(i64 part) const {
    if (!whole_heads) return rows(H * K, part);
    const Range heads = share(H, part);
    return {heads.first * K, heads.last * K};
  }

  // Call f(part) for the parts of this thread. There may be fewer threads than parts; results do not depend on it.
  template <class F>
  void each_part(F f) {
    for (i64 part = thread; part < c.parts; part += threads) f(part);
  }

  // Wait until all threads have written what this thread reads next; meanwhile fetch its parameters.
  void wait(const char* next) {
    warm(next);
    barrier.wait();
  }

  // The parameters of some rows and columns, of which this thread's first part reads the first.
  static const char* address(const Matrix<real>& m, i64 row, i64 column) {
    const i64 size = m.storage == Storage::INT8 ? 1 : m.storage == Storage::BFLOAT16 ? 2 : sizeof(real);
    return static_cast<const char*>(m.data) + (row / PANEL_ROWS * PANEL_ROWS * m.columns + column * PANEL_ROWS) * size;
  }
  const char* attention_start(const StepLayer<real>& layer) const {
    return address(layer.query, head_rows(thread).first, 0);
  }

  // Rows of W x for a whole vector x.
  void product(const Matrix<real>& m, Range r, const real* x, real* y, i64 ldy, const char* next = nullptr,
               Epilogue epilogue = STORE) {
    Product<real>{m, r.first, r.last, 0, m.columns, x, m.columns, B, y, ldy, true, epilogue, next}.run();
  }

  // W x for some columns of W: a summand of the output of a sublayer.
  void product_part(const Matrix<real>& m, Range columns, const real* x, i64 ldx, i64 part, const char* next) {
    const real* from = x + columns.first;
    Product<real>{m, 0, D, columns.first, columns.last, from, ldx, B, summand(part), D, part == 0, STORE, next}.run();
  }

  // The summands of successive sublayers alternate between two buffers: one is read while the other is written.
  real* summand(i64 part) const { return c.summands + (sublayer % 2 * c.parts + part) * B * D; }

  // to = x + the summands of all parts; with post-norm, normalized.
  void add_summands(const real* x, real* to, const Norm<real>& by, const char* next) {
    wait(next);
    for (i64 i = 0; i < B * D; ++i) to[i] = x[i] + summand(0)[i];
    for (i64 part = 1; part < c.parts; ++part) {
      const real* more = summand(part);
      for (i64 i = 0; i < B * D; ++i) to[i] += more[i];
    }
    ++sublayer;
    if (!s.pre_norm) norm_into(to, by, s.eps, to);
  }

  void norm_into(const real* x, const Norm<real>& by, real eps, real* to) {
    for (i64 b = 0; b < B; ++b, x += D, to += D) {
      real rstd;
      standardize(x, 1, D, eps, to, &rstd);
      for (i64 d = 0; d < D; ++d) to[d] = to[d] * by.weight[d] + by.bias[d];
    }
  }

  // The sublayer's input, normalized with pre-norm. Each thread computes it, which is cheaper than a barrier.
  const real* input(const real* x, const Norm<real>& by) {
    if (!s.pre_norm) return x;
    norm_into(x, by, s.eps, normed);
    return normed;
  }

  // x is vector a, the result vector a + 1.
  void apply(i64 a) {
    const Application& at = s.applications[a];
    const StepLayer<real>& layer = s.layers[at.layer];
    const real* x = vector(a);
    real* to = vector(a + 1);
    const Range inner = rows(s.F, thread);
    const char *inner_start = address(layer.inner, inner.first, 0), *outer_start = address(layer.outer, 0, inner.first);
    const bool crossed = layer.cross_query.data;
    attend(at, layer, x);
    attention_output(layer.out, crossed ? address(layer.cross_query, head_rows(thread).first, 0) : inner_start);
    add_summands(x, to, layer.attention_norm, crossed ? nullptr : inner_start);
    if (crossed) {
      attend_source(layer, at.layer, to);
      attention_output(layer.cross_out, inner_start);
      add_summands(to, to, layer.cross_norm, inner_start);
    }
    const real* in = input(to, layer.feed_forward_norm);
    const char* following = a + 1 < s.A ? attention_start(s.layers[s.applications[a + 1].layer]) : final_start();
    each_part([&](i64 part) {
      const Range r = rows(s.F, part);
      product(layer.inner, r, in, c.inner, s.F, outer_start, RELU);
      product_part(layer.outer, r, c.inner, s.F, part, following);
    });
    add_summands(to, to, layer.feed_forward_norm, following);
  }

  // Attention up to its output projection is in c.z.
  void attention_output(const Matrix<real>& by, const char* next) {
    if (!whole_heads) barrier.wait();
    each_part([&](i64 part) {
      const Range r = whole_heads ? head_rows(part) : share(H * K, part);
      product_part(by, r, c.z, H * K, part, next);
    });
  }

  // Self-attention up to its output projection, in c.z.
  void attend(const Application& at, const StepLayer<real>& layer, const real* x) {
    const i64 HK = H * K;
    if (at.write >= 0) {
      const StepLayer<real>& projection = s.layers[s.ring_sources[at.write].layer];
      project(projection, input(x, projection.attention_norm), attention_start(layer));
    }
    const real* in = input(x, layer.attention_norm);
    each_part([&](i64 part) { product(layer.query, head_rows(part), in, c.q, HK); });
    each_pair([&](i64 b, i64 h) {
      if (at.write >= 0) write(at.write, b, h * K, (h + 1) * K);
      read(at, layer, b, h);
    });
  }

  // Keys and values of a vector, in c.keys and c.values.
  void project(const StepLayer<real>& layer, const real* in, const char* next) {
    const char* value_start = address(layer.value, head_rows(thread).first, 0);
    each_part([&](i64 part) {
      product(layer.key, head_rows(part), in, c.keys, H * K, value_start);
      product(layer.value, head_rows(part), in, c.values, H * K, next);
    });
  }

  // Call f(stream, head) for this thread's pairs. If parts have no whole heads, wait until all rows are projected.
  template <class F>
  void each_pair(F f) {
    if (!whole_heads) barrier.wait();
    i64 pair = 0;
    for (i64 b = 0; b < B; ++b)
      for (i64 h = 0; h < H; ++h, ++pair) {
        const i64 part = whole_heads ? h * c.parts / H : pair % c.parts;
        if (part % threads == thread) f(b, h);
      }
  }

  // Call f with pointers to the keys and values of a ring, of their type.
  template <class F>
  void with_ring(i64 ring, F f) {
    const Ring& r = c.rings[ring];
    if constexpr (sizeof(real) == sizeof(float))
      if (c.bfloat16_rings) return f(static_cast<uint16_t*>(r.keys), static_cast<uint16_t*>(r.values), r.R);
    f(static_cast<real*>(r.keys), static_cast<real*>(r.values), r.R);
  }

  // Write the keys and values of some columns of a stream at the cursor.
  void write(i64 ring, i64 b, i64 first, i64 last) {
    const i64 HK = H * K;
    with_ring(ring, [&](auto* keys, auto* values, i64 R) {
      for (i64 i = first; i < last; ++i) {
        const i64 at = (b * HK + i) * R + c.cursor[ring];
        set_element<real>(keys + at, c.keys[b * HK + i]);
        set_element<real>(values + at, c.values[b * HK + i]);
      }
    });
  }

  // Attention of one head of one stream to its rings, into c.z. Zero if there is nothing to attend to.
  void read(const Application& at, const StepLayer<real>& layer, i64 b, i64 h) {
    const real* q = c.q + (b * H + h) * K;
    real* z = c.z + (b * H + h) * K;
    i64 n = 0;
    each_slice(at, layer, b, [&](const RingSlice& t) {
      with_ring(t.ring, [&](auto* keys, auto*, i64 R) { score(q, keys + (b * H + h) * K * R + t.at, R, t, scores + n); });
      if (layer.ramp)
        for (i64 i = 0; i < t.n; ++i) scores[n + i] += layer.ramp[h * s.P + t.column + i];
      n += t.n;
    });
    for (i64 k = 0; k < K; ++k) z[k] = 0;
    if (!n) return;
    softmax<real>(scores, n, nullptr, scores);
    n = 0;
    each_slice(at, layer, b, [&](const RingSlice& t) {
      with_ring(t.ring, [&](auto*, auto* values, i64 R) {
        add_values(scores + n, values + (b * H + h) * K * R + t.at, R, t.n, z);
      });
      n += t.n;
    });
  }

  template <class F>
  void each_slice(const Application& at, const StepLayer<real>& layer, i64 b, F f) {
    for (i64 i = 0; i < at.n_reads; ++i) {
      const Read& read = at.reads[i];
      i64 first, last;
      read.distances(c.count[b], s.chunk, first, last);
      last = min(last, s.nearest + layer.span - 1);
      if (last < first) continue;
      const i64 R = c.rings[read.ring].R, column = s.nearest + s.P - 1 - last;
      const i64 start = (c.cursor[read.ring] - last % R + R) % R, n = last - first + 1, before_wrap = min(n, R - start);
      f(RingSlice{read.ring, start, before_wrap, column});
      if (before_wrap < n) f(RingSlice{read.ring, 0, n - before_wrap, column + before_wrap});
    }
  }

  // scores (n) = q . (keys + position embeddings) / sqrt(K); keys (K, R)
  template <class Stored>
  void score(const real* q, const Stored* keys, i64 R, const RingSlice& t, real* out) {
    const real* position = s.position + t.column;
    for (i64 i = 0; i < t.n; ++i) out[i] = 0;
    i64 k = 0;
    for (; k + ROWS <= K; k += ROWS) score_rows<ROWS>(q + k, keys + k * R, R, position + k * s.P, t.n, out);
    for (; k < K; ++k) score_rows<1>(q + k, keys + k * R, R, position + k * s.P, t.n, out);
  }

  // Rows are read in memory order, with the next rows fetched beside them: keys rarely are in the nearest cache.
  template <int rows, class Stored>
  void score_rows(const real* q, const Stored* keys, i64 R, const real* position, i64 n, real* out) {
    constexpr int W = LANES<real>;
    const real scale = 1 / __builtin_sqrt(static_cast<double>(K));
    Vec<real> x[rows];
    for (int j = 0; j < rows; ++j) x[j] = broadcast(q[j] * scale);
    i64 i = 0;
    for (; i + W <= n; i += W) {
      Vec<real> sum = load(out + i);
#pragma GCC unroll 4
      for (int j = 0; j < rows; ++j) {
        __builtin_prefetch(keys + (rows + j) * R + i);
        sum += x[j] * (load_as<real>(keys + j * R + i) + load(position + j * s.P + i));
      }
      store(out + i, sum);
    }
    for (; i < n; ++i)
      for (int j = 0; j < rows; ++j) out[i] += q[j] * scale * (element<real>(keys + j * R + i) + position[j * s.P + i]);
  }

  // z (K) += values (K, R) weights (n)
  template <class Stored>
  void add_values(const real* weights, const Stored* values, i64 R, i64 n, real* z) {
    constexpr int W = LANES<real>;
    i64 k = 0;
    for (; k + 8 <= K; k += 8) {
      const Stored* rows = values + k * R;
      Vec<real> acc[8] = {};
      i64 i = 0;
      for (; i + W <= n; i += W) {
          const Vec<real> weight = load(weights + i);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
          __builtin_prefetch(rows + (8 + j) * R + i);
          acc[j] += weight * load_as<real>(rows + j * R + i);
        }
      }
      real sums[8];
      store_sums(sums, [&](int j) __attribute__((always_inline)) { return acc[j]; });
      for (int j = 0; j < 8; ++j) {
        for (i64 r = i; r < n; ++r) sums[j] += weights[r] * element<real>(rows + j * R + r);
        z[k + j] += sums[j];
      }
    }
    for (; k < K; ++k)
      for (i64 i = 0; i < n; ++i) z[k] += weights[i] * element<real>(values + k * R + i);
  }

  // Attention to the source of each stream, up to its output projection, in c.z.
  void attend_source(const StepLayer<real>& layer, i64 l, const real* x) {
    const real* in = input(x, layer.cross_norm);
    each_part([&](i64 part) { product(layer.cross_query, head_rows(part), in, c.q, H * K); });
    each_pair([&](i64 b, i64 h) { read_source(l, b, h); });
  }

  void read_source(i64 l, i64 b, i64 h) {
    const real *q = c.q + (b * H + h) * K;
    real* z = c.z + (b * H + h) * K;
    const i64 at = (c.source_index[b] * H + h) * c.J * K;
    const bool* visible = c.source_mask + c.source_index[b] * c.J;
    const real scale = 1 / __builtin_sqrt(static_cast<double>(K));
    for (i64 k = 0; k < K; ++k) z[k] = 0;
    i64 n = 0;
    each_run(visible, [&](i64 first, i64 length) {
      for (i64 i = 0; i < length; ++i) scores[n + i] = 0;
      dots(q, c.source_keys[l] + at + first * K, length, K, scores + n);
      n += length;
    });
    if (!n) return;
    for (i64 i = 0; i < n; ++i) scores[i] *= scale;
    softmax<real>(scores, n, nullptr, scores);
    n = 0;
    each_run(visible, [&](i64 first, i64 length) {
      add_weighted(scores + n, 1, c.source_values[l] + at + first * K, K, length, K, z);
      n += length;
    });
  }

  // Runs of source tokens that are not padding.
  template <class F>
  void each_run(const bool* visible, F f) {
    for (i64 j = 0; j < c.J;) {
      if (!visible[j]) {
        ++j;
        continue;
      }
      const i64 first = j;
      while (j < c.J && visible[j]) ++j;
      f(first, j - first);
    }
  }

  // Compute the mixes, and write the keys and values that are written at the end of a step.
  void write_final_rings() {
    const i64 A = s.A;
    for (i64 g = 0; g < s.G; ++g) {
      real* mixed = vector(A + 1 + g);
      for (i64 i = 0; i < B * D; ++i) mixed[i] = 0;
      for (i64 a = 0; a <= A; ++a)
        if (const real weight = s.mix[g * (A + 1) + a])
          for (i64 i = 0; i < B * D; ++i) mixed[i] += weight * vector(a)[i];
    }
    for (i64 r = 0; r < s.n_rings; ++r) {
      const RingSource& source = s.ring_sources[r];
      if (!source.at_end) continue;
      const StepLayer<real>& layer = s.layers[source.layer];
      project(layer, input(vector(source.vector), layer.attention_norm), head_start());
      each_part([&](i64 part) {
        const Range range = head_rows(part);
        for (i64 b = 0; b < B; ++b) write(r, b, range.first, range.last);
      });
    }
  }

  // The parameters that this thread reads after the last layer.
  const char* final_start() const {
    for (i64 r = 0; r < s.n_rings; ++r)
      if (s.ring_sources[r].at_end) return address(s.layers[s.ring_sources[r].layer].key, head_rows(thread).first, 0);
    return head_start();
  }
  const char* head_start() const { return c.logits ? address(s.head, rows(s.V, thread).first, 0) : nullptr; }

  // Write the raw vectors from which states are built.
  void write_raw() {
    for (i64 r = 0; r < s.n_raw; ++r) {
      const RawRing<real>& ring = c.raw[r];
      const RawSource& source = s.raw_sources[r];
      each_part([&](i64 part) {
        const Range range = share(D, part);
        for (i64 b = 0; b < B && ring.R; ++b)
          for (i64 v = 0; v < source.n; ++v) {
            const real* from = vector(source.vectors[v]) + b * D;
            real* to = ring.data + ((b * ring.R + c.cursor[s.n_rings + r]) * source.n + v) * D;
            for (i64 d = range.first; d < range.last; ++d) to[d] = from[d];
          }
      });
    }
  }

  // The final norm and the head.
  void predict() {
    const real* y = vector(s.A);
    if (s.norm.weight) {
      norm_into(y, s.norm, s.norm_eps, normed);
      y = normed;
    }
    each_part([&](i64 part) {
      const Range range = share(B * D, part);
      for (i64 i = range.first; i < range.last; ++i) c.hidden[i] = y[i];
      if (c.logits) product(s.head, rows(s.V, part), y, c.logits, s.V);
    });
  }

  const Step<real>& s;
  const StepCall<real>& c;
  Barrier& barrier;
  const i64 thread, threads, B, D, H, K;
  const bool whole_heads;  // each part has some heads, and needs only its own rows of queries, keys and values
  i64 sublayer = 0;
  real *vectors, *normed, *scores;
};

template <class real>
static void run_decode(const Step<real>& step, const StepCall<real>& call, Barrier& barrier, i64 thread, i64 threads,
                       real* scratch) {
  Decode<real>(step, call, barrier, thread, threads, scratch).run();
}

template <class real>
static i64 decode_scratch(const Step<real>& step, i64 B, i64 positions) {
  return Decode<real>::scratch(step, B, positions);
}
