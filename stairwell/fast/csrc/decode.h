// The kernel of a decoding step. Included once per instruction set, inside namespace stairwell::STAIRWELL_ISA, after
// vector.h. Threads share the rows of each matrix, so each parameter is read once per step, by one thread.

// Load a vector of parameters from any storage type.
template <class real>
ALWAYS_INLINE Vec<real> parameters(const real* p) {
  return load(p);
}
#if STAIRWELL_BYTES == 64
// Compilers make slow code of __builtin_convertvector here.
template <class real>
ALWAYS_INLINE Vec<real> parameters(const uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
template <class real>
ALWAYS_INLINE Vec<real> parameters(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#elif STAIRWELL_AVX2
template <class real>
ALWAYS_INLINE Vec<real> parameters(const uint16_t* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
template <class real>
ALWAYS_INLINE Vec<real> parameters(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
#else
typedef uint16_t Halves __attribute__((vector_size(STAIRWELL_BYTES / 2), aligned(2), may_alias));
typedef int8_t Quarters __attribute__((vector_size(STAIRWELL_BYTES / 4), aligned(1), may_alias));
typedef uint32_t Unsigned __attribute__((vector_size(STAIRWELL_BYTES)));
typedef int32_t Signed __attribute__((vector_size(STAIRWELL_BYTES)));

template <class real>
ALWAYS_INLINE Vec<real> parameters(const uint16_t* p) {
  return (Vec<float>)(__builtin_convertvector(*reinterpret_cast<const Halves*>(p), Unsigned) << 16);
}
template <class real>
ALWAYS_INLINE Vec<real> parameters(const int8_t* p) {
  return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const Quarters*>(p), Signed), Vec<float>);
}
#endif
ALWAYS_INLINE float parameter(float p) { return p; }
ALWAYS_INLINE double parameter(double p) { return p; }
ALWAYS_INLINE float parameter(int8_t p) { return p; }
ALWAYS_INLINE float parameter(uint16_t p) {
  const uint32_t bits = static_cast<uint32_t>(p) << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

enum Epilogue { STORE, ADD, RELU };

// A block of rows of W times a block of streams; the sums stay in registers.
template <class real, class Stored, int rows, int streams>
ALWAYS_INLINE void product_block(const Stored* w, i64 n, const real* x, i64 ldx, real (&sums)[rows][streams]) {
  constexpr int W = LANES<real>;
  Vec<real> acc[rows][streams] = {};
  i64 k = 0;
  for (; k + W <= n; k += W) {
    Vec<real> input[streams];
    for (int b = 0; b < streams; ++b) input[b] = load(x + b * ldx + k);
    for (int r = 0; r < rows; ++r) {
      const Vec<real> weight = parameters<real>(w + r * n + k);
      for (int b = 0; b < streams; ++b) acc[r][b] += weight * input[b];
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int b = 0; b < streams; ++b) {
      sums[r][b] = sum_lanes<real>(acc[r][b]);
      for (i64 j = k; j < n; ++j) sums[r][b] += parameter(w[r * n + j]) * x[b * ldx + j];
    }
}

template <class real, class Stored, int rows, int streams>
static void product_rows(const Matrix<real>& m, i64 row, const real* x, i64 ldx, real* y, i64 ldy, Epilogue epilogue) {
  real sums[rows][streams];
  product_block<real, Stored, rows, streams>(static_cast<const Stored*>(m.data) + row * m.columns, m.columns, x, ldx,
                                             sums);
  for (int r = 0; r < rows; ++r) {
    const real scale = m.scale ? m.scale[row + r] : 1, bias = m.bias ? m.bias[row + r] : 0;
    for (int b = 0; b < streams; ++b) {
      const real value = sums[r][b] * scale + bias;
      real& to = y[b * ldy + row + r];
      to = epilogue == ADD ? to + value : epilogue == RELU ? (value > 0 || value != value ? value : 0) : value;
    }
  }
}

template <class real, class Stored, int rows>
static void product_streams(const Matrix<real>& m, i64 row, const real* x, i64 ldx, i64 B, real* y, i64 ldy,
                            Epilogue epilogue) {
  i64 b = 0;
  for (; b + 4 <= B; b += 4) product_rows<real, Stored, rows, 4>(m, row, x + b * ldx, ldx, y + b * ldy, ldy, epilogue);
  if (b + 2 <= B) {
    product_rows<real, Stored, rows, 2>(m, row, x + b * ldx, ldx, y + b * ldy, ldy, epilogue);
    b += 2;
  }
  if (b < B) product_rows<real, Stored, rows, 1>(m, row, x + b * ldx, ldx, y + b * ldy, ldy, epilogue);
}

template <class real, class Stored>
static void product_as(const Matrix<real>& m, i64 first, i64 last, const real* x, i64 ldx, i64 B, real* y, i64 ldy,
                       Epilogue epilogue) {
  i64 row = first;
  for (; row + 4 <= last; row += 4) product_streams<real, Stored, 4>(m, row, x, ldx, B, y, ldy, epilogue);
  for (; row < last; ++row) product_streams<real, Stored, 1>(m, row, x, ldx, B, y, ldy, epilogue);
}

// y (B, ldy) = W x for the rows first .. last of W, x (B, ldx).
static void product(const Matrix<float>& m, i64 first, i64 last, const float* x, i64 ldx, i64 B, float* y, i64 ldy,
                    Epilogue epilogue = STORE) {
  switch (m.storage) {
    case Storage::BFLOAT16: return product_as<float, uint16_t>(m, first, last, x, ldx, B, y, ldy, epilogue);
    case Storage::INT8: return product_as<float, int8_t>(m, first, last, x, ldx, B, y, ldy, epilogue);
    default: return product_as<float, float>(m, first, last, x, ldx, B, y, ldy, epilogue);
  }
}
static void product(const Matrix<double>& m, i64 first, i64 last, const double* x, i64 ldx, i64 B, double* y, i64 ldy,
                    Epilogue epilogue = STORE) {
  product_as<double, double>(m, first, last, x, ldx, B, y, ldy, epilogue);
}

// Consecutive ring positions that a token attends to: n positions from `at`; `column` is that of the first distance.
struct RingSlice {
  i64 ring, at, n, column;
};

template <class real>
class Decode {
 public:
  Decode(const Step<real>& step, const StepCall<real>& call, Barrier& barrier, i64 thread, i64 threads, real* scratch)
      : s(step), c(call), barrier(barrier), thread(thread), threads(threads), B(call.B), D(step.D), H(step.H), K(step.K) {
    normed = scratch;
    scores = normed + B * D;
  }

  static i64 scratch(i64 B, i64 D, i64 positions) { return B * D + positions + 2 * LANES<real> + 64; }

  void run() {
    for (i64 a = 0; a < s.A; ++a) apply(s.applications[a], vector(a), vector(a + 1));
    write_final_rings();
    write_raw();
    predict();
  }

 private:
  real* vector(i64 v) const { return c.vectors + v * B * D; }

  // First index of a thread's share of n.
  i64 share(i64 n, i64 of) const { return n * of / threads; }

  void norm(const real* x, const Norm<real>& by) { norm_into(x, by, s.eps, normed); }

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
    norm(x, by);
    return normed;
  }

  // x (B, D) -> to (B, D). `to` holds the residual stream between sublayers.
  void apply(const Application& at, const real* x, real* to) {
    const StepLayer<real>& layer = s.layers[at.layer];
    const i64 HK = H * K, first = share(D, thread), last = share(D, thread + 1);
    attend(at, layer, x);
    barrier.wait();
    residual(layer.out, c.z, HK, x, to);
    finish(to, layer.attention_norm);
    if (layer.cross_query.data) {
      attend_source(layer, at.layer, to);
      barrier.wait();
      product(layer.cross_out, first, last, c.z, HK, B, to, D, ADD);
      finish(to, layer.cross_norm);
    }
    const real* in = input(to, layer.feed_forward_norm);
    product(layer.inner, share(s.F, thread), share(s.F, thread + 1), in, D, B, c.inner, s.F, RELU);
    barrier.wait();
    product(layer.outer, first, last, c.inner, s.F, B, to, D, ADD);
    finish(to, layer.feed_forward_norm);
  }

  // to = x + W z, this thread's rows.
  void residual(const Matrix<real>& by, const real* z, i64 ldz, const real* x, real* to) {
    const i64 first = share(D, thread), last = share(D, thread + 1);
    for (i64 b = 0; b < B; ++b)
      for (i64 d = first; d < last; ++d) to[b * D + d] = x[b * D + d];
    product(by, first, last, z, ldz, B, to, D, ADD);
  }

  // Wait until all threads have written `to`; with post-norm, normalize it.
  void finish(real* to, const Norm<real>& by) {
    barrier.wait();
    if (s.pre_norm) return;
    norm(to, by);
    barrier.wait();  // every thread has read `to`
    for (i64 i = share(B * D, thread); i < share(B * D, thread + 1); ++i) to[i] = normed[i];
    barrier.wait();
  }

  // Self-attention up to its output projection, in c.z.
  void attend(const Application& at, const StepLayer<real>& layer, const real* x) {
    const i64 HK = H * K;
    const bool whole_heads = H % threads == 0;  // then a thread only needs its own results
    const i64 first = whole_heads ? share(H, thread) * K : share(HK, thread);
    const i64 last = whole_heads ? share(H, thread + 1) * K : share(HK, thread + 1);
    if (at.write >= 0) {
      const StepLayer<real>& projection = s.layers[s.ring_sources[at.write].layer];
      const real* in = input(x, projection.attention_norm);
      product(projection.key, first, last, in, D, B, c.keys, HK);
      product(projection.value, first, last, in, D, B, c.values, HK);
    }
    product(layer.query, first, last, input(x, layer.attention_norm), D, B, c.q, HK);
    if (!whole_heads) barrier.wait();
    const i64 from = whole_heads ? share(H, thread) : 0, until = whole_heads ? share(H, thread + 1) : H;
    i64 pair = 0;
    for (i64 b = 0; b < B; ++b)
      for (i64 h = from; h < until; ++h) {
        if (!whole_heads && pair++ % threads != thread) continue;
        if (at.write >= 0) write(at.write, b, h, c.keys, c.values);
        read(at, layer, b, h);
      }
  }

  void write(i64 ring, i64 b, i64 h, const real* keys, const real* values) {
    const Ring<real>& r = c.rings[ring];
    const i64 at = (b * H + h) * K * r.R + c.cursor[ring];
    for (i64 k = 0; k < K; ++k) {
      r.keys[at + k * r.R] = keys[b * H * K + h * K + k];
      r.values[at + k * r.R] = values[b * H * K + h * K + k];
    }
  }

  // Attention of one head of one stream to its rings, into c.z. Zero if there is nothing to attend to.
  void read(const Application& at, const StepLayer<real>& layer, i64 b, i64 h) {
    const real* q = c.q + (b * H + h) * K;
    real* z = c.z + (b * H + h) * K;
    i64 n = 0;
    each_slice(at, layer, b, [&](const RingSlice& t) {
      const real* keys = c.rings[t.ring].keys + (b * H + h) * K * c.rings[t.ring].R + t.at;
      score(q, keys, c.rings[t.ring].R, t, scores + n);
      if (layer.ramp)
        for (i64 i = 0; i < t.n; ++i) scores[n + i] += layer.ramp[h * s.P + t.column + i];
      n += t.n;
    });
    for (i64 k = 0; k < K; ++k) z[k] = 0;
    if (!n) return;
    softmax<real>(scores, n, nullptr, scores);
    n = 0;
    each_slice(at, layer, b, [&](const RingSlice& t) {
      const i64 R = c.rings[t.ring].R;
      add_values(scores + n, c.rings[t.ring].values + (b * H + h) * K * R + t.at, R, t.n, z);
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
  void score(const real* q, const real* keys, i64 R, const RingSlice& t, real* out) {
    constexpr int W = LANES<real>, U = 4;
    const real* position = s.position + t.column;
    const real scale = 1 / __builtin_sqrt(static_cast<double>(K));
    i64 i = 0;
    for (; i + U * W <= t.n; i += U * W) {
      Vec<real> acc[U] = {};
      for (i64 k = 0; k < K; ++k) {
        const Vec<real> x = broadcast(q[k]);
        for (int u = 0; u < U; ++u) acc[u] += x * (load(keys + k * R + i + u * W) + load(position + k * s.P + i + u * W));
      }
      for (int u = 0; u < U; ++u) store(out + i + u * W, acc[u] * scale);
    }
    for (; i + W <= t.n; i += W) {
      Vec<real> acc = {};
      for (i64 k = 0; k < K; ++k) acc += broadcast(q[k]) * (load(keys + k * R + i) + load(position + k * s.P + i));
      store(out + i, acc * scale);
    }
    for (; i < t.n; ++i) {
      real sum = 0;
      for (i64 k = 0; k < K; ++k) sum += q[k] * (keys[k * R + i] + position[k * s.P + i]);
      out[i] = sum * scale;
    }
  }

  // z (K) += values (K, R) weights (n)
  void add_values(const real* weights, const real* values, i64 R, i64 n, real* z) {
    constexpr int W = LANES<real>;
    for (i64 k = 0; k < K; ++k) {
      Vec<real> first = {}, second = {};
      const real* row = values + k * R;
      i64 i = 0;
      for (; i + 2 * W <= n; i += 2 * W) {
        first += load(weights + i) * load(row + i);
        second += load(weights + i + W) * load(row + i + W);
      }
      if (i + W <= n) {
        first += load(weights + i) * load(row + i);
        i += W;
      }
      real sum = sum_lanes<real>(first + second);
      for (; i < n; ++i) sum += weights[i] * row[i];
      z[k] += sum;
    }
  }

  // Attention to the source of each stream, up to its output projection, in c.z.
  void attend_source(const StepLayer<real>& layer, i64 l, const real* x) {
    const i64 HK = H * K;
    product(layer.cross_query, share(HK, thread), share(HK, thread + 1), input(x, layer.cross_norm), D, B, c.q, HK);
    barrier.wait();
    for (i64 pair = thread; pair < B * H; pair += threads) read_source(l, pair / H, pair % H);
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
    const i64 A = s.A, HK = H * K;
    for (i64 g = 0; g < s.G; ++g)
      for (i64 i = share(B * D, thread); i < share(B * D, thread + 1); ++i) {
        real sum = 0;
        for (i64 a = 0; a <= A; ++a)
          if (s.mix[g * (A + 1) + a] != 0) sum += s.mix[g * (A + 1) + a] * vector(a)[i];
        vector(A + 1 + g)[i] = sum;
      }
    if (s.G) barrier.wait();
    const i64 first = share(HK, thread), last = share(HK, thread + 1);
    for (i64 r = 0; r < s.n_rings; ++r) {
      const RingSource& source = s.ring_sources[r];
      if (!source.at_end) continue;
      const StepLayer<real>& layer = s.layers[source.layer];
      const real* in = input(vector(source.vector), layer.attention_norm);
      product(layer.key, first, last, in, D, B, c.keys, HK);
      product(layer.value, first, last, in, D, B, c.values, HK);
      const Ring<real>& ring = c.rings[r];
      for (i64 b = 0; b < B; ++b)
        for (i64 i = first; i < last; ++i) {
          const i64 at = (b * HK + i) * ring.R + c.cursor[r];
          ring.keys[at] = c.keys[b * HK + i];
          ring.values[at] = c.values[b * HK + i];
        }
    }
  }

  // Write the raw vectors from which states are built.
  void write_raw() {
    const i64 first = share(D, thread), last = share(D, thread + 1);
    for (i64 r = 0; r < s.n_raw; ++r) {
      const RawRing<real>& ring = c.raw[r];
      const RawSource& source = s.raw_sources[r];
      for (i64 b = 0; b < B && ring.R; ++b)
        for (i64 v = 0; v < source.n; ++v) {
          const real* from = vector(source.vectors[v]) + b * D;
          real* to = ring.data + ((b * ring.R + c.cursor[s.n_rings + r]) * source.n + v) * D;
          for (i64 d = first; d < last; ++d) to[d] = from[d];
        }
    }
  }

  // The final norm and the head.
  void predict() {
    const real* y = vector(s.A);
    if (s.norm.weight) {
      norm_into(y, s.norm, s.norm_eps, normed);
      y = normed;
    }
    for (i64 i = share(B * D, thread); i < share(B * D, thread + 1); ++i) c.hidden[i] = y[i];
    if (c.logits) product(s.head, share(s.V, thread), share(s.V, thread + 1), y, D, B, c.logits, s.V);
  }

  const Step<real>& s;
  const StepCall<real>& c;
  Barrier& barrier;
  const i64 thread, threads, B, D, H, K;
  real *normed, *scores;
};

template <class real>
static void run_decode(const Step<real>& step, const StepCall<real>& call, Barrier& barrier, i64 thread, i64 threads,
                       real* scratch) {
  Decode<real>(step, call, barrier, thread, threads, scratch).run();
}

template <class real>
static i64 decode_scratch(i64 B, i64 D, i64 positions) {
  return Decode<real>::scratch(B, D, positions);
}
