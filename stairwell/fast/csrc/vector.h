// Vectors of STAIRWELL_BYTES bytes, products with packed matrices, and the small loops of attention.
// Included once for each instruction set, inside namespace stairwell::STAIRWELL_ISA: nothing here may be shared between
// them, so nothing of the standard library that is a template is used.

#define ALWAYS static inline __attribute__((always_inline))

template <class real>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float type __attribute__((vector_size(STAIRWELL_BYTES)));
  typedef float loose __attribute__((vector_size(STAIRWELL_BYTES), aligned(4), may_alias));
};
template <>
struct Lanes<double> {
  typedef double type __attribute__((vector_size(STAIRWELL_BYTES)));
  typedef double loose __attribute__((vector_size(STAIRWELL_BYTES), aligned(8), may_alias));
};
template <class real>
using Vec = typename Lanes<real>::type;

template <class real>
constexpr int VL = STAIRWELL_BYTES / sizeof(real);  // lanes
template <class real>
constexpr int NR = 2 * VL<real>;  // columns of a panel
constexpr int MR = 6;             // rows of a block
constexpr i64 KC = 256;           // depth of a block: a panel of it stays in the first cache

template <class real>
ALWAYS Vec<real> load(const real* p) {
  return *reinterpret_cast<const typename Lanes<real>::loose*>(p);
}
template <class real>
ALWAYS void store(real* p, Vec<real> v) {
  *reinterpret_cast<typename Lanes<real>::loose*>(p) = v;
}
template <class real>
ALWAYS Vec<real> all(real x) {
  return x - Vec<real>{};  // a sum with zero would cost an addition: it turns -0 into 0
}
ALWAYS i64 least(i64 a, i64 b) { return a < b ? a : b; }
ALWAYS i64 most(i64 a, i64 b) { return a > b ? a : b; }

template <class real>
ALWAYS real total(Vec<real> v) {
  real sum = 0;
  for (int i = 0; i < VL<real>; ++i) sum += v[i];
  return sum;
}

// C (rows, NR) = init + bias + A B for one panel of B; `columns` of the result are wanted.
template <class real, int rows>
static void micro(i64 depth, const real* a, i64 lda, const real* b, real* c, i64 ldc, const real* init, i64 ldi,
                  const real* bias, i64 columns) {
  constexpr int W = VL<real>, N = NR<real>;
  Vec<real> acc[rows][2] = {};
  for (i64 k = 0; k < depth; ++k) {
    const Vec<real> b0 = load(b), b1 = load(b + W);
    b += N;
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const Vec<real> x = all(a[r * lda + k]);
      acc[r][0] += x * b0;
      acc[r][1] += x * b1;
    }
  }
  // What is added comes last: small terms summed onto a large one would lose their digits one by one.
  if (columns == N) {
    const Vec<real> bias0 = bias ? load(bias) : Vec<real>{}, bias1 = bias ? load(bias + W) : Vec<real>{};
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      acc[r][0] += bias0;
      acc[r][1] += bias1;
    }
    if (init) {
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        acc[r][0] += load(init + r * ldi);
        acc[r][1] += load(init + r * ldi + W);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      store(c + r * ldc, acc[r][0]);
      store(c + r * ldc + W, acc[r][1]);
    }
    return;
  }
  real edge[rows][N];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    store(edge[r], acc[r][0]);
    store(edge[r] + W, acc[r][1]);
  }
  for (int r = 0; r < rows; ++r)
    for (i64 j = 0; j < columns; ++j)
      c[r * ldc + j] = edge[r][j] + (bias ? bias[j] : 0) + (init ? init[r * ldi + j] : 0);
}

template <class real>
static void micro_rows(i64 rows, i64 depth, const real* a, i64 lda, const real* b, real* c, i64 ldc, const real* init,
                       i64 ldi, const real* bias, i64 columns) {
  switch (rows) {
    case 1: return micro<real, 1>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    case 2: return micro<real, 2>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    case 3: return micro<real, 3>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    case 4: return micro<real, 4>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    case 5: return micro<real, 5>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    default: return micro<real, 6>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
  }
}

// C (M, N) = init + bias + A (M, depth) B; init, bias may be null; init may be C.
template <class real>
static void multiply(i64 M, i64 N, i64 depth, const real* A, i64 lda, Packed<real> B, real* C, i64 ldc,
                     const real* init = nullptr, i64 ldi = 0, const real* bias = nullptr) {
  const i64 blocks = (M + MR - 1) / MR;
  for (i64 k = 0; k < depth; k += KC) {
    const i64 deep = least(KC, depth - k);
    for (i64 j = 0; j < N; j += NR<real>) {
      const real* panel = B.data + j * B.depth + k * NR<real>;
      // Blocks of equal height: 8 rows are 4 + 4, not 6 + 2.
      for (i64 block = 0; block < blocks; ++block) {
        const i64 first = M * block / blocks, rows = M * (block + 1) / blocks - first;
        const real* from = k ? C : init;
        const i64 ld = k ? ldc : ldi;
        micro_rows(rows, deep, A + first * lda + k, lda, panel, C + first * ldc + j, ldc,
                   from ? from + first * ld + j : nullptr, ld, k || !bias ? nullptr : bias + j,
                   least(NR<real>, N - j));
      }
    }
  }
}

// out_i = the sum of the lanes of of(i), for eight i. Each is asked for as late as possible: registers are few.
template <class real, class Of>
ALWAYS void store_totals(real* out, Of of) {
  for (int i = 0; i < 8; ++i) out[i] = total<real>(of(i));
}
#if STAIRWELL_AVX2
ALWAYS __m256 half(__m256 v) { return v; }
#if STAIRWELL_BYTES == 64
ALWAYS __m256 half(__m512 v) {
  return _mm256_add_ps(_mm512_castps512_ps256(v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
}
#endif
template <class Of>
ALWAYS __m256 four_totals(Of of, int i) {
  const __m256 first = _mm256_hadd_ps(half(of(i)), half(of(i + 1)));
  const __m256 second = _mm256_hadd_ps(half(of(i + 2)), half(of(i + 3)));
  return _mm256_hadd_ps(first, second);
}
template <class Of>
ALWAYS void store_totals(float* out, Of of) {
  const __m256 low = four_totals(of, 0), high = four_totals(of, 4);
  const __m256 first = _mm256_permute2f128_ps(low, high, 0x20), second = _mm256_permute2f128_ps(low, high, 0x31);
  _mm256_storeu_ps(out, _mm256_add_ps(first, second));
}
#endif

// x . row over the first `vectors` vectors (0: over `even` reals), in two sums so that one need not wait for the other.
template <class real, int vectors>
ALWAYS Vec<real> dot(const real* x, const real* row, i64 even) {
  constexpr int W = VL<real>;
  Vec<real> sum = {}, other = {};
  if (vectors) {
#pragma GCC unroll 16
    for (int j = 0; j < vectors; ++j) (j % 2 ? other : sum) += load(x + j * W) * load(row + j * W);
  } else {
    for (i64 k = 0; k < even; k += W) sum += load(x + k) * load(row + k);
  }
  return sum + other;
}

// Memory is read in order, row by row: this is as fast as the keys come from the cache.
template <class real, int vectors>
static void dots_of(const real* x, const real* rows, i64 n, i64 K, real* out) {
  const i64 even = K - K % VL<real>;
  // The last eight overlap with those before them; what is already done is not added again.
  for (i64 done = 0; done < n && n >= 8; done += 8) {
    const i64 i = least(done, n - 8);
    real sums[8];
    store_totals(sums, [&](int r) __attribute__((always_inline)) {
      return dot<real, vectors>(x, rows + (i + r) * K, even);
    });
    for (i64 r = done - i; r < 8; ++r) out[i + r] += sums[r];
  }
  for (i64 i = 0; i < n && n < 8; ++i) out[i] += total<real>(dot<real, vectors>(x, rows + i * K, even));
  if (even < K)
    for (i64 i = 0; i < n; ++i)
      for (i64 k = even; k < K; ++k) out[i] += x[k] * rows[i * K + k];
}

// out_i += x . rows_i for n rows of K.
template <class real>
static void dots(const real* x, const real* rows, i64 n, i64 K, real* out) {
  switch (K % VL<real> ? 0 : K / VL<real>) {
    case 1: return dots_of<real, 1>(x, rows, n, K, out);
    case 2: return dots_of<real, 2>(x, rows, n, K, out);
    case 4: return dots_of<real, 4>(x, rows, n, K, out);
    case 8: return dots_of<real, 8>(x, rows, n, K, out);
    case 16: return dots_of<real, 16>(x, rows, n, K, out);
    default: return dots_of<real, 0>(x, rows, n, K, out);
  }
}

// out (K) += sum_i w_i rows_i, `width` vectors of columns at once; w and rows advance by their strides.
template <class real, int width>
ALWAYS void gather_block(const real* w, i64 w_stride, const real* rows, i64 stride, i64 n, real* out) {
  constexpr int W = VL<real>;
  Vec<real> s[width];
  for (int j = 0; j < width; ++j) s[j] = load(out + j * W);
  for (i64 i = 0; i < n; ++i) {
    const Vec<real> x = all(w[i * w_stride]);
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) s[j] += x * load(rows + i * stride + j * W);
  }
  for (int j = 0; j < width; ++j) store(out + j * W, s[j]);
}

template <class real>
static void gather(const real* w, i64 w_stride, const real* rows, i64 stride, i64 n, i64 K, real* out) {
  constexpr int W = VL<real>;
  i64 k = 0;
  for (; k + 8 * W <= K; k += 8 * W) gather_block<real, 8>(w, w_stride, rows + k, stride, n, out + k);
  for (; k + 4 * W <= K; k += 4 * W) gather_block<real, 4>(w, w_stride, rows + k, stride, n, out + k);
  for (; k + W <= K; k += W) gather_block<real, 1>(w, w_stride, rows + k, stride, n, out + k);
  for (; k < K; ++k)
    for (i64 i = 0; i < n; ++i) out[k] += w[i * w_stride] * rows[i * stride + k];
}

// The same for `slots` results at once: result r takes weights w[r], w[r + w_stride], ...
template <class real, int slots>
static void gather_slots(const real* w, i64 w_stride, const real* rows, i64 stride, i64 n, i64 K, real* out, i64 ldo) {
  constexpr int W = VL<real>;
  i64 k = 0;
  for (; k + 2 * W <= K; k += 2 * W) {
    Vec<real> s[slots][2];
    for (int r = 0; r < slots; ++r)
      for (int j = 0; j < 2; ++j) s[r][j] = load(out + r * ldo + k + j * W);
    for (i64 i = 0; i < n; ++i) {
      const Vec<real> v0 = load(rows + i * stride + k), v1 = load(rows + i * stride + k + W);
#pragma GCC unroll 6
      for (int r = 0; r < slots; ++r) {
        const Vec<real> x = all(w[i * w_stride + r]);
        s[r][0] += x * v0;
        s[r][1] += x * v1;
      }
    }
    for (int r = 0; r < slots; ++r)
      for (int j = 0; j < 2; ++j) store(out + r * ldo + k + j * W, s[r][j]);
  }
  if (k < K)
    for (int r = 0; r < slots; ++r) gather(w + r, w_stride, rows + k, stride, n, K - k, out + r * ldo + k);
}

// e^x for x <= 0.
ALWAYS Vec<float> exponential(Vec<float> x) {
  typedef int32_t whole __attribute__((vector_size(STAIRWELL_BYTES)));
  const Vec<float> low = all(-87.0f);
  x = x < low ? low : x;
  const Vec<float> shift = all(12582912.0f);  // adding 1.5 * 2^23 rounds to a whole number
  const Vec<float> n = (x * 1.44269504f + shift) - shift;
  const Vec<float> r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const whole power = (__builtin_convertvector(n, whole) + 127) << 23;
  return p * (Vec<float>)power;
}
ALWAYS Vec<double> exponential(Vec<double> x) {
  for (int i = 0; i < VL<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

// weights = softmax(scores) times ramp, renormalized, over n >= 1 slots. Scores are overwritten, with room after them.
template <class real>
static void softmax(real* scores, i64 n, const real* ramp, real* weights) {
  constexpr int W = VL<real>;
  real top = scores[0];
#pragma omp simd reduction(max : top)
  for (i64 i = 1; i < n; ++i) top = scores[i] > top ? scores[i] : top;
  for (i64 i = n; i < (n + W - 1) / W * W; ++i) scores[i] = top;
  for (i64 i = 0; i < n; i += W) store(scores + i, exponential(load(scores + i) - top));
  real sum = 0;
  if (ramp)
    for (i64 i = 0; i < n; ++i) scores[i] *= ramp[i];
#pragma omp simd reduction(+ : sum)
  for (i64 i = 0; i < n; ++i) sum += scores[i];
  const real scale = 1 / sum;
  for (i64 i = 0; i < n; ++i) weights[i] = scores[i] * scale;
}

// (x - mean) / sigma of each row, and rstd = 1 / sigma.
template <class real>
static void standardize(const real* x, i64 rows, i64 D, real eps, real* out, real* rstd) {
  for (i64 r = 0; r < rows; ++r, x += D, out += D) {
    real sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
    for (i64 d = 0; d < D; ++d) sum += x[d];
    const real mean = sum / D;
#pragma omp simd reduction(+ : square)
    for (i64 d = 0; d < D; ++d) square += (x[d] - mean) * (x[d] - mean);
    const real scale = 1 / __builtin_sqrt(square / D + eps);
    for (i64 d = 0; d < D; ++d) out[d] = (x[d] - mean) * scale;
    rstd[r] = scale;
  }
}

// out += the gradient of what was standardized; `grad` is of what came of it.
template <class real>
static void standardize_back(const real* grad, const real* normed, const real* rstd, i64 rows, i64 D, real* out) {
  for (i64 r = 0; r < rows; ++r, grad += D, normed += D, out += D) {
    real sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
    for (i64 d = 0; d < D; ++d) {
      sum += grad[d];
      along += grad[d] * normed[d];
    }
    sum /= D;
    along /= D;
    for (i64 d = 0; d < D; ++d) out[d] += (grad[d] - sum - normed[d] * along) * rstd[r];
  }
}
