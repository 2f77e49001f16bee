// The state matrices of DeltaNet: one head of one stream, forward and backward. Letters as in cores/delta.py.

// One head of one batch element. `fixed` is K at compile time, or 0.
template <class real, int fixed>
class DeltaHead {
 public:
  DeltaHead(const Delta<real>& call, i64 element, i64 head)
      : call(call), element(element), head(head), K(fixed ? fixed : call.K) {}

  // S (K, K): the matrix before the call, updated in place.
  void forward(real* S, real* error) const {
    for (i64 t = 0; t < call.T; ++t) {
      begin_token(S, t);
      for (i64 j = 0; j < call.n; ++j) apply_correction(S, t, j, error);
      sum_rows(call.o + at(t) * K, 1, call.q + at(t) * K, S);
    }
  }

  // d_S (K, K): the gradient of the matrix after the call, updated in place to that of the matrix before. The matrices
  // are recomputed in blocks of `block` tokens, from the checkpoints of a first pass. Sums over a row of a matrix are
  // slow and over a column fast, so each matrix is also stored transposed. saved (block * n, K, K): transposed, before
  // each correction.
  void backward(real* S, real* transposed, real* d_S, real* d_transposed, i64 block, real* checkpoints, real* saved,
                real* errors) const {
    const i64 size = K * K, blocks = (call.T + block - 1) / block;
    copy(checkpoints, S, size);
    for (i64 t = 0; t < (blocks - 1) * block; ++t) {
      begin_token(S, t);
      for (i64 j = 0; j < call.n; ++j) apply_correction(S, t, j, errors);
      if ((t + 1) % block == 0) copy(checkpoints + (t + 1) / block * size, S, size);
    }
    transpose(d_S, d_transposed);
    for (i64 b = blocks; b-- > 0;) {
      const i64 first = b * block, last = min(first + block, call.T);
      copy(S, checkpoints + b * size, size);
      transpose(S, transposed);
      for (i64 t = first; t < last; ++t) {
        begin_token(S, t);
        begin_token(transposed, t);
        for (i64 j = 0; j < call.n; ++j) {
          const i64 m = (t - first) * call.n + j, offset = at(t, j);
          copy(saved + m * size, transposed, size);
          apply_correction(S, t, j, errors + m * K);
          for (i64 i = 0; i < K; ++i) add(transposed + i * K, call.b[offset] * errors[m * K + i], call.k + offset * K);
        }
      }
      for (i64 t = last; t-- > first;) {
        const i64 m = (t - first) * call.n;
        token_backward(d_S, d_transposed, t, saved + m * size, errors + m * K);
      }
    }
  }

 private:
  i64 at(i64 t) const { return (element * call.T + t) * call.H + head; }
  i64 at(i64 t, i64 j) const { return ((element * call.T + t) * call.n + j) * call.H + head; }
  bool is_start(i64 t) const { return call.start && call.start[element * call.T + t]; }

  // Reset and decay before a token's corrections.
  void begin_token(real* S, i64 t) const {
    if (is_start(t)) zero(S, K * K);
    if (call.a) scale(S, call.a[at(t)], K * K);
  }

  // error (K) = v - S^T k
  void apply_correction(real* S, i64 t, i64 j, real* error) const {
    const i64 offset = at(t, j);
    const real *k = call.k + offset * K, *v = call.v + offset * K, b = call.b[offset];
    sum_rows(error, -1, k, S, v);
    for (i64 i = 0; i < K; ++i) add(S + i * K, b * k[i], error);
  }

  // Backward of one token, given the saved matrices (n, K, K) and errors (n, K) of its corrections.
  void token_backward(real* d_S, real* d_transposed, i64 t, const real* saved, const real* errors) const {
    const i64 size = K * K, last = call.n - 1;
    const real *q = call.q + at(t) * K, *d_o = call.d_o + at(t) * K;
    // The output was read after the last correction: add that to the saved matrix.
    real* d_q = call.d_q + at(t) * K;
    sum_rows(d_q, 1, d_o, saved + last * size);
    add(d_q, call.b[at(t, last)] * dot(errors + last * K, d_o), call.k + at(t, last) * K);
    add_product(d_S, d_transposed, 1, q, d_o);
    for (i64 j = call.n; j-- > 0;) {
      const i64 offset = at(t, j);
      const real *k = call.k + offset * K, b = call.b[offset], *transposed = saved + j * size, *error = errors + j * K;
      real *d_k = call.d_k + offset * K, *d_v = call.d_v + offset * K;
      sum_rows(d_v, 1, k, d_S);
      call.d_b[offset] = dot(d_v, error);
      scale(d_v, b, K);
      sum_rows(d_k, b, error, d_transposed);
      sum_rows(d_k, -1, d_v, transposed, d_k);
      add_product(d_S, d_transposed, -1, k, d_v);
    }
    if (call.a) {
      real sum = 0;
      for (i64 i = 0; i < K; ++i) sum += dot(saved + i * K, d_transposed + i * K);
      call.d_log_a[at(t)] = sum;
      scale(d_S, call.a[at(t)], size);
      scale(d_transposed, call.a[at(t)], size);
    }
    if (is_start(t)) {
      zero(d_S, size);
      zero(d_transposed, size);
    }
  }

  // S += factor x y^T, also in the transposed copy.
  void add_product(real* S, real* transposed, real factor, const real* x, const real* y) const {
    for (i64 i = 0; i < K; ++i) {
      add(S + i * K, factor * x[i], y);
      add(transposed + i * K, factor * y[i], x);
    }
  }
  void transpose(const real* S, real* transposed) const {
    for (i64 i = 0; i < K; ++i)
      for (i64 j = 0; j < K; ++j) transposed[j * K + i] = S[i * K + j];
  }
  // to = init + factor (x_1 row_1 + .. + x_K row_K); init may be null, and may be `to`.
  void sum_rows(real* to, real factor, const real* x, const real* rows, const real* init = nullptr) const {
    constexpr int W = LANES<real>;
    i64 c = 0;
    for (; c + W <= K; c += W) {
      Vec<real> even = {}, odd = {};
      i64 i = 0;
      for (; i + 2 <= K; i += 2) {
        even += x[i] * load(rows + i * K + c);
        odd += x[i + 1] * load(rows + (i + 1) * K + c);
      }
      if (i < K) even += x[i] * load(rows + i * K + c);
      const Vec<real> sum = factor * (even + odd);
      store<real>(to + c, init ? load(init + c) + sum : sum);
    }
    for (; c < K; ++c) {
      real sum = 0;
      for (i64 i = 0; i < K; ++i) sum += x[i] * rows[i * K + c];
      to[c] = (init ? init[c] : 0) + factor * sum;
    }
  }
  real dot(const real* x, const real* y) const {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (i64 i = 0; i < K; ++i) sum += x[i] * y[i];
    return sum;
  }
  void add(real* to, real factor, const real* from) const {
#pragma omp simd
    for (i64 i = 0; i < K; ++i) to[i] += factor * from[i];
  }
  static void scale(real* x, real factor, i64 n) {
#pragma omp simd
    for (i64 i = 0; i < n; ++i) x[i] *= factor;
  }
  static void copy(real* to, const real* from, i64 n) { __builtin_memcpy(to, from, n * sizeof(real)); }
  static void zero(real* x, i64 n) { __builtin_memset(x, 0, n * sizeof(real)); }

  const Delta<real>& call;
  const i64 element, head, K;
};

// Tokens that backward recomputes at a time, so that their matrices fit into the L2 cache.
template <class real>
ALWAYS_INLINE i64 delta_block(const Delta<real>& call) {
  return max(1, min(call.T, 131072 / static_cast<i64>(sizeof(real)) / (call.n * call.K * call.K)));
}

// Workspace of one head: an error; for backward also the matrix, its transpose, the transposed gradient, the matrices
// and errors of a block, and one checkpoint per block.
template <class real>
static i64 delta_workspace(const Delta<real>& call) {
  const i64 size = call.K * call.K, block = delta_block(call), blocks = (call.T + block - 1) / block;
  return call.d_o ? size * (3 + blocks + block * call.n) + block * call.n * call.K : call.K;
}

template <class real, int fixed>
static void delta_heads(const Delta<real>& call, i64 first, i64 last, real* work) {
  const i64 size = call.K * call.K, block = delta_block(call), blocks = (call.T + block - 1) / block;
  for (i64 r = first; r < last; ++r) {
    const DeltaHead<real, fixed> head(call, r / call.H, r % call.H);
    if (!call.d_o) {
      __builtin_memcpy(call.S_after + r * size, call.S_before + r * size, size * sizeof(real));
      head.forward(call.S_after + r * size, work);
      continue;
    }
    real *S = work, *transposed = S + size, *d_transposed = transposed + size, *checkpoints = d_transposed + size;
    real *saved = checkpoints + blocks * size, *errors = saved + block * call.n * size;
    __builtin_memcpy(S, call.S_before + r * size, size * sizeof(real));
    __builtin_memcpy(call.d_S_before + r * size, call.d_S_after + r * size, size * sizeof(real));
    head.backward(S, transposed, call.d_S_before + r * size, d_transposed, block, checkpoints, saved, errors);
  }
}

template <class real>
static void run_delta(const Delta<real>& call, i64 first, i64 last, real* work) {
  switch (call.K) {
    case 16: return delta_heads<real, 16>(call, first, last, work);
    case 32: return delta_heads<real, 32>(call, first, last, work);
    case 64: return delta_heads<real, 64>(call, first, last, work);
    default: return delta_heads<real, 0>(call, first, last, work);
  }
}
