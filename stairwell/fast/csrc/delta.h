// The loops of a DeltaNet's matrices: one head of one row through a call, and back. Letters as in cores/delta.py.

// Where one head of one row lies in the call's tensors. K is known to the compiler if `fixed` is not 0.
template <class real, int fixed>
class DeltaHead {
 public:
  DeltaHead(const Delta<real>& call, i64 row, i64 head) : call(call), row(row), head(head), K(fixed ? fixed : call.K) {}

  // S (K, K) is the matrix before the call, and after it.
  void forward(real* S, real* error) const {
    for (i64 t = 0; t < call.T; ++t) {
      enter(S, t);
      for (i64 j = 0; j < call.n; ++j) correct(S, t, j, error);
      sum_rows(call.read + at(t) * K, 1, call.q + at(t) * K, S);
    }
  }

  // d_S (K, K) is the gradient of the matrix after the call, and before it. `block` tokens are walked anew at a time,
  // from matrices that a first walk leaves in `marks`. Sums over a row of a matrix are slow, over a column they are not:
  // so each matrix is kept twice, as it is and turned over. seen (block * n, K, K): before each correction, turned over.
  void backward(real* S, real* turned, real* d_S, real* d_turned, i64 block, real* marks, real* seen,
                real* errors) const {
    const i64 size = K * K, blocks = (call.T + block - 1) / block;
    copy(marks, S, size);
    for (i64 t = 0; t < (blocks - 1) * block; ++t) {
      enter(S, t);
      for (i64 j = 0; j < call.n; ++j) correct(S, t, j, errors);
      if ((t + 1) % block == 0) copy(marks + (t + 1) / block * size, S, size);
    }
    turn(d_S, d_turned);
    for (i64 b = blocks; b-- > 0;) {
      const i64 first = b * block, last = least(first + block, call.T);
      copy(S, marks + b * size, size);
      turn(S, turned);
      for (i64 t = first; t < last; ++t) {
        enter(S, t);
        enter(turned, t);
        for (i64 j = 0; j < call.n; ++j) {
          const i64 m = (t - first) * call.n + j, place = at(t, j);
          copy(seen + m * size, turned, size);
          correct(S, t, j, errors + m * K);
          for (i64 i = 0; i < K; ++i) add(turned + i * K, call.b[place] * errors[m * K + i], call.k + place * K);
        }
      }
      for (i64 t = last; t-- > first;) {
        const i64 m = (t - first) * call.n;
        leave(d_S, d_turned, t, seen + m * size, errors + m * K);
      }
    }
  }

 private:
  i64 at(i64 t) const { return (row * call.T + t) * call.H + head; }
  i64 at(i64 t, i64 j) const { return ((row * call.T + t) * call.n + j) * call.H + head; }
  bool begins(i64 t) const { return call.start && call.start[row * call.T + t]; }

  // What happens to the matrix before a token's corrections.
  void enter(real* S, i64 t) const {
    if (begins(t)) clear(S, K * K);
    if (call.a) scale(S, call.a[at(t)], K * K);
  }

  // error (K): what the matrix lacked, v - S^T k
  void correct(real* S, i64 t, i64 j, real* error) const {
    const i64 place = at(t, j);
    const real *k = call.k + place * K, *v = call.v + place * K, b = call.b[place];
    sum_rows(error, -1, k, S, v);
    for (i64 i = 0; i < K; ++i) add(S + i * K, b * k[i], error);
  }

  // A token backwards: seen (n, K, K) and errors (n, K) are those of its corrections.
  void leave(real* d_S, real* d_turned, i64 t, const real* seen, const real* errors) const {
    const i64 size = K * K, last = call.n - 1;
    const real *q = call.q + at(t) * K, *d_read = call.d_read + at(t) * K;
    // The matrix that was read is the one before the last correction and what that added.
    real* d_q = call.d_q + at(t) * K;
    sum_rows(d_q, 1, d_read, seen + last * size);
    add(d_q, call.b[at(t, last)] * dot(errors + last * K, d_read), call.k + at(t, last) * K);
    add_product(d_S, d_turned, 1, q, d_read);
    for (i64 j = call.n; j-- > 0;) {
      const i64 place = at(t, j);
      const real *k = call.k + place * K, b = call.b[place], *turned = seen + j * size, *error = errors + j * K;
      real *d_k = call.d_k + place * K, *d_v = call.d_v + place * K;
      sum_rows(d_v, 1, k, d_S);
      call.d_b[place] = dot(d_v, error);
      scale(d_v, b, K);
      sum_rows(d_k, b, error, d_turned);
      sum_rows(d_k, -1, d_v, turned, d_k);
      add_product(d_S, d_turned, -1, k, d_v);
    }
    if (call.a) {
      real sum = 0;
      for (i64 i = 0; i < K; ++i) sum += dot(seen + i * K, d_turned + i * K);
      call.d_log_a[at(t)] = sum;
      scale(d_S, call.a[at(t)], size);
      scale(d_turned, call.a[at(t)], size);
    }
    if (begins(t)) {
      clear(d_S, size);
      clear(d_turned, size);
    }
  }

  // S += factor x y^T, and the same turned over.
  void add_product(real* S, real* turned, real factor, const real* x, const real* y) const {
    for (i64 i = 0; i < K; ++i) {
      add(S + i * K, factor * x[i], y);
      add(turned + i * K, factor * y[i], x);
    }
  }
  void turn(const real* S, real* turned) const {
    for (i64 i = 0; i < K; ++i)
      for (i64 j = 0; j < K; ++j) turned[j * K + i] = S[i * K + j];
  }
  // to = init + factor (x_1 row_1 + .. + x_K row_K); init may be null, and may be `to`.
  void sum_rows(real* to, real factor, const real* x, const real* rows, const real* init = nullptr) const {
    constexpr int W = VL<real>;
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
  static void clear(real* x, i64 n) { __builtin_memset(x, 0, n * sizeof(real)); }

  const Delta<real>& call;
  const i64 row, head, K;
};

// Tokens that backward walks anew at a time: their matrices should stay in the second cache.
template <class real>
ALWAYS i64 delta_block(const Delta<real>& call) {
  return most(1, least(call.T, 131072 / static_cast<i64>(sizeof(real)) / (call.n * call.K * call.K)));
}

// Reals that one head needs besides the call's tensors: an error, and for backward its matrix and that turned over, the
// gradient turned over, matrices and errors of a block, and a matrix for each block.
template <class real>
static i64 delta_workspace(const Delta<real>& call) {
  const i64 size = call.K * call.K, block = delta_block(call), blocks = (call.T + block - 1) / block;
  return call.d_read ? size * (3 + blocks + block * call.n) + block * call.n * call.K : call.K;
}

template <class real, int fixed>
static void delta_heads(const Delta<real>& call, i64 first, i64 last, real* work) {
  const i64 size = call.K * call.K, block = delta_block(call), blocks = (call.T + block - 1) / block;
  for (i64 r = first; r < last; ++r) {
    const DeltaHead<real, fixed> head(call, r / call.H, r % call.H);
    if (!call.d_read) {
      __builtin_memcpy(call.after + r * size, call.before + r * size, size * sizeof(real));
      head.forward(call.after + r * size, work);
      continue;
    }
    real *S = work, *turned = S + size, *d_turned = turned + size, *marks = d_turned + size;
    real *seen = marks + blocks * size, *errors = seen + block * call.n * size;
    __builtin_memcpy(S, call.before + r * size, size * sizeof(real));
    __builtin_memcpy(call.d_before + r * size, call.d_after + r * size, size * sizeof(real));
    head.backward(S, turned, call.d_before + r * size, d_turned, block, marks, seen, errors);
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
