// Vectors of STAIRWELL_BYTES bytes, products with packed matrices, and the inner loops of attention. Included once per
// instruction set, inside namespace stairwell::STAIRWELL_ISA. Nothing may be shared between instruction sets, so
// templates of the standard library are not used.

#define ALWAYS_INLINE static inline __attribute__((always_inline))

template <class real>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float type __attribute__((vector_size(STAIRWELL_BYTES)));
  typedef float unaligned __attribute__((vector_size(STAIRWELL_BYTES), aligned(4), may_alias));
};
template <>
struct Lanes<double> {
  typedef double type __attribute__((vector_size(STAIRWELL_BYTES)));
  typedef double unaligned __attribute__((vector_size(STAIRWELL_BYTES), aligned(8), may_alias));
};
template <class real>
using Vec = typename Lanes<real>::type;

template <class real>
constexpr int LANES = STAIRWELL_BYTES / sizeof(real);
template <class real>
constexpr int PANEL = 2 * LANES<real>;  // columns of a panel
template <class real>
constexpr int PREFETCH = 4096 / sizeof(real);  // elements between a load of a panel and the prefetch beside it
constexpr int BLOCK_ROWS = 6;     // rows of a block
constexpr i64 BLOCK_DEPTH = 256;  // depth of a block: one panel of it fits into the L1 cache

template <class real>
ALWAYS_INLINE Vec<real> load(const real* p) {
  return *reinterpret_cast<const typename Lanes<real>::unaligned*>(p);
}
template <class real>
ALWAYS_INLINE void store(real* p, Vec<real> v) {
  *reinterpret_cast<typename Lanes<real>::unaligned*>(p) = v;
}
template <class real>
ALWAYS_INLINE Vec<real> broadcast(real x) {
  return x - Vec<real>{};  // not a sum: x + 0 turns -0 into 0, so the compiler could not remove the addition
}

// Read or write one element of keys or values.
template <class real>
ALWAYS_INLINE real element(const real* p) {
  return *p;
}
template <class real>
ALWAYS_INLINE real element(const uint16_t* p) {
  const uint32_t bits = static_cast<uint32_t>(*p) << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
template <class real>
ALWAYS_INLINE void set_element(real* p, real value) {
  *p = value;
}
template <class real>
ALWAYS_INLINE void set_element(uint16_t* p, real given) {
  const float value = static_cast<float>(given);
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  // Round to the nearest value, ties to even. NaN stays NaN.
  *p = value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Load a vector of elements of any storage type: of parameters, keys or values.
template <class real>
ALWAYS_INLINE Vec<real> load_as(const real* p) {
  return load(p);
}
#if STAIRWELL_BYTES == 64
// Compilers make slow code of __builtin_convertvector here.
ALWAYS_INLINE Vec<float> load_halves(const uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
template <class real>
ALWAYS_INLINE Vec<real> load_as(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#elif STAIRWELL_AVX2
ALWAYS_INLINE Vec<float> load_halves(const uint16_t* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
template <class real>
ALWAYS_INLINE Vec<real> load_as(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
#else
typedef uint16_t Halves __attribute__((vector_size(STAIRWELL_BYTES / 2), aligned(2), may_alias));
typedef int8_t Quarters __attribute__((vector_size(STAIRWELL_BYTES / 4), aligned(1), may_alias));
typedef uint32_t Unsigned __attribute__((vector_size(STAIRWELL_BYTES)));
typedef int32_t Signed __attribute__((vector_size(STAIRWELL_BYTES)));

ALWAYS_INLINE Vec<float> load_halves(const uint16_t* p) {
  return (Vec<float>)(__builtin_convertvector(*reinterpret_cast<const Halves*>(p), Unsigned) << 16);
}
template <class real>
ALWAYS_INLINE Vec<real> load_as(const int8_t* p) {
  return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const Quarters*>(p), Signed), Vec<float>);
}
#endif
template <class real>
ALWAYS_INLINE Vec<real> load_as(const uint16_t* p) {
  if constexpr (sizeof(real) == sizeof(float)) {
    return load_halves(p);
  } else {
    Vec<real> v = {};
    for (int i = 0; i < LANES<real>; ++i) v[i] = element<real>(p + i);
    return v;
  }
}

ALWAYS_INLINE i64 min(i64 a, i64 b) { return a < b ? a : b; }
ALWAYS_INLINE i64 max(i64 a, i64 b) { return a > b ? a : b; }

template <class real>
ALWAYS_INLINE real sum_lanes(Vec<real> v) {
  real sum = 0;
  for (int i = 0; i < LANES<real>; ++i) sum += v[i];
  return sum;
}

// C (rows, PANEL) = init + bias + A B for one panel of B; only `columns` columns are stored.
template <class real, int rows>
static void micro_kernel(i64 depth, const real* a, i64 lda, const real* b, real* c, i64 ldc, const real* init, i64 ldi,
                  const real* bias, i64 columns) {
  constexpr int W = LANES<real>, N = PANEL<real>;
  Vec<real> acc[rows][2] = {};
  for (i64 k = 0; k < depth; ++k) {
    const Vec<real> b0 = load(b), b1 = load(b + W);
    for (i64 i = 0; i < N; i += 64 / static_cast<i64>(sizeof(real))) __builtin_prefetch(b + PREFETCH<real> + i);
    b += N;
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const Vec<real> x = broadcast(a[r * lda + k]);
      acc[r][0] += x * b0;
      acc[r][1] += x * b1;
    }
  }
  // bias and init are added last: adding small terms to a large one would lose precision.
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
static void micro_kernel_rows(i64 rows, i64 depth, const real* a, i64 lda, const real* b, real* c, i64 ldc,
                              const real* init, i64 ldi, const real* bias, i64 columns) {
  switch (rows) {
    case 1: return micro_kernel<real, 1>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    case 2: return micro_kernel<real, 2>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    case 3: return micro_kernel<real, 3>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    case 4: return micro_kernel<real, 4>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    case 5: return micro_kernel<real, 5>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
    default: return micro_kernel<real, 6>(depth, a, lda, b, c, ldc, init, ldi, bias, columns);
  }
}

// C (M, N) = init + bias + A (M, depth) B; init, bias may be null; init may be C.
template <class real>
static void multiply(i64 M, i64 N, i64 depth, const real* A, i64 lda, Packed<real> B, real* C, i64 ldc,
                     const real* init = nullptr, i64 ldi = 0, const real* bias = nullptr) {
  const i64 blocks = (M + BLOCK_ROWS - 1) / BLOCK_ROWS;
  for (i64 k = 0; k < depth; k += BLOCK_DEPTH) {
    const i64 block_depth = min(BLOCK_DEPTH, depth - k);
    for (i64 j = 0; j < N; j += PANEL<real>) {
      const real* panel = B.data + j * B.depth + k * PANEL<real>;
      // Blocks of equal height: 8 rows are 4 + 4, not 6 + 2.
      for (i64 block = 0; block < blocks; ++block) {
        const i64 first = M * block / blocks, rows = M * (block + 1) / blocks - first;
        const real* from = k ? C : init;
        const i64 ld = k ? ldc : ldi;
        micro_kernel_rows(rows, block_depth, A + first * lda + k, lda, panel, C + first * ldc + j, ldc,
                   from ? from + first * ld + j : nullptr, ld, k || !bias ? nullptr : bias + j,
                   min(PANEL<real>, N - j));
      }
    }
  }
}

// out_i = sum of the lanes of of(i), for eight i. of(i) is evaluated late to save registers.
template <class real, class Of>
ALWAYS_INLINE void store_sums(real* out, Of of) {
  for (int i = 0; i < 8; ++i) out[i] = sum_lanes<real>(of(i));
}
#if STAIRWELL_AVX2
ALWAYS_INLINE __m256 fold_to_256(__m256 v) { return v; }
#if STAIRWELL_BYTES == 64
ALWAYS_INLINE __m256 fold_to_256(__m512 v) {
  return _mm256_add_ps(_mm512_castps512_ps256(v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
}
#endif
template <class Of>
ALWAYS_INLINE __m256 four_sums(Of of, int i) {
  const __m256 first = _mm256_hadd_ps(fold_to_256(of(i)), fold_to_256(of(i + 1)));
  const __m256 second = _mm256_hadd_ps(fold_to_256(of(i + 2)), fold_to_256(of(i + 3)));
  return _mm256_hadd_ps(first, second);
}
template <class Of>
ALWAYS_INLINE void store_sums(float* out, Of of) {
  const __m256 low = four_sums(of, 0), high = four_sums(of, 4);
  const __m256 first = _mm256_permute2f128_ps(low, high, 0x20), second = _mm256_permute2f128_ps(low, high, 0x31);
  _mm256_storeu_ps(out, _mm256_add_ps(first, second));
}
#endif

// x . row over `vectors` vectors (0: over `even` elements), in two independent sums.
template <class real, int vectors, class Stored>
ALWAYS_INLINE Vec<real> dot(const real* x, const Stored* row, i64 even) {
  constexpr int W = LANES<real>;
  Vec<real> sum = {}, other = {};
  if (vectors) {
#pragma GCC unroll 16
    for (int j = 0; j < vectors; ++j) (j % 2 ? other : sum) += load(x + j * W) * load_as<real>(row + j * W);
  } else {
    for (i64 k = 0; k < even; k += W) sum += load(x + k) * load_as<real>(row + k);
  }
  return sum + other;
}

// Rows are read in memory order, so the speed is that of reading the keys from cache.
template <class real, int vectors, class Stored>
static void dots_of(const real* x, const Stored* rows, i64 n, i64 K, real* out) {
  const i64 even = K - K % LANES<real>;
  // The last eight rows may overlap with the previous ones; sums that are already stored are skipped.
  for (i64 done = 0; done < n && n >= 8; done += 8) {
    const i64 i = min(done, n - 8);
    real sums[8];
    store_sums(sums, [&](int r) __attribute__((always_inline)) {
      return dot<real, vectors>(x, rows + (i + r) * K, even);
    });
    for (i64 r = done - i; r < 8; ++r) out[i + r] += sums[r];
  }
  for (i64 i = 0; i < n && n < 8; ++i) out[i] += sum_lanes<real>(dot<real, vectors>(x, rows + i * K, even));
  if (even < K)
    for (i64 i = 0; i < n; ++i)
      for (i64 k = even; k < K; ++k) out[i] += x[k] * element<real>(rows + i * K + k);
}

// out_i += x . rows_i for n rows of K.
template <class real, class Stored>
static void dots(const real* x, const Stored* rows, i64 n, i64 K, real* out) {
  switch (K % LANES<real> ? 0 : K / LANES<real>) {
    case 1: return dots_of<real, 1>(x, rows, n, K, out);
    case 2: return dots_of<real, 2>(x, rows, n, K, out);
    case 3: return dots_of<real, 3>(x, rows, n, K, out);
    case 4: return dots_of<real, 4>(x, rows, n, K, out);
    case 6: return dots_of<real, 6>(x, rows, n, K, out);
    case 8: return dots_of<real, 8>(x, rows, n, K, out);
    case 12: return dots_of<real, 12>(x, rows, n, K, out);
    case 16: return dots_of<real, 16>(x, rows, n, K, out);
    default: return dots_of<real, 0>(x, rows, n, K, out);
  }
}

// out (K) += sum_i w_i rows_i, `width` vectors of columns at once; w and rows advance by their strides.
template <class real, int width, class Stored>
ALWAYS_INLINE void add_weighted_block(const real* w, i64 w_stride, const Stored* rows, i64 stride, i64 n, real* out) {
  // Several rows at a time, each with its own sums: a sum waits for the previous one.
  constexpr int W = LANES<real>, U = width <= 2 ? 4 : width <= 4 ? 2 : 1;
  Vec<real> s[U][width] = {};
  for (int j = 0; j < width; ++j) s[0][j] = load(out + j * W);
  i64 i = 0;
  for (; i + U <= n; i += U) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const Vec<real> x = broadcast(w[(i + u) * w_stride]);
#pragma GCC unroll 8
      for (int j = 0; j < width; ++j) s[u][j] += x * load_as<real>(rows + (i + u) * stride + j * W);
    }
  }
  for (; i < n; ++i)
    for (int j = 0; j < width; ++j) s[0][j] += broadcast(w[i * w_stride]) * load_as<real>(rows + i * stride + j * W);
  for (int u = 1; u < U; ++u)
    for (int j = 0; j < width; ++j) s[0][j] += s[u][j];
  for (int j = 0; j < width; ++j) store(out + j * W, s[0][j]);
}

template <class real, class Stored>
static void add_weighted(const real* w, i64 w_stride, const Stored* rows, i64 stride, i64 n, i64 K, real* out) {
  constexpr int W = LANES<real>;
  i64 k = 0;
  for (; k + 8 * W <= K; k += 8 * W) add_weighted_block<real, 8>(w, w_stride, rows + k, stride, n, out + k);
  for (; k + 6 * W <= K; k += 6 * W) add_weighted_block<real, 6>(w, w_stride, rows + k, stride, n, out + k);
  for (; k + 4 * W <= K; k += 4 * W) add_weighted_block<real, 4>(w, w_stride, rows + k, stride, n, out + k);
  for (; k + 2 * W <= K; k += 2 * W) add_weighted_block<real, 2>(w, w_stride, rows + k, stride, n, out + k);
  for (; k + W <= K; k += W) add_weighted_block<real, 1>(w, w_stride, rows + k, stride, n, out + k);
  for (; k < K; ++k)
    for (i64 i = 0; i < n; ++i) out[k] += w[i * w_stride] * element<real>(rows + i * stride + k);
}

// The same for `slots` results at once: result r takes weights w[r], w[r + w_stride], ...
template <class real, int slots>
static void add_weighted_slots(const real* w, i64 w_stride, const real* rows, i64 stride, i64 n, i64 K, real* out,
                               i64 ldo) {
  constexpr int W = LANES<real>;
  i64 k = 0;
  for (; k + 2 * W <= K; k += 2 * W) {
    Vec<real> s[slots][2];
    for (int r = 0; r < slots; ++r)
      for (int j = 0; j < 2; ++j) s[r][j] = load(out + r * ldo + k + j * W);
    for (i64 i = 0; i < n; ++i) {
      const Vec<real> v0 = load(rows + i * stride + k), v1 = load(rows + i * stride + k + W);
#pragma GCC unroll 6
      for (int r = 0; r < slots; ++r) {
        const Vec<real> x = broadcast(w[i * w_stride + r]);
        s[r][0] += x * v0;
        s[r][1] += x * v1;
      }
    }
    for (int r = 0; r < slots; ++r)
      for (int j = 0; j < 2; ++j) store(out + r * ldo + k + j * W, s[r][j]);
  }
  if (k < K)
    for (int r = 0; r < slots; ++r) add_weighted(w + r, w_stride, rows + k, stride, n, K - k, out + r * ldo + k);
}

// e^x for x <= 0.
ALWAYS_INLINE Vec<float> exponential(Vec<float> x) {
  typedef int32_t integers __attribute__((vector_size(STAIRWELL_BYTES)));
  const Vec<float> low = broadcast(-87.0f);
  x = x < low ? low : x;
  const Vec<float> shift = broadcast(12582912.0f);  // adding 1.5 * 2^23 rounds to an integer
  const Vec<float> n = (x * 1.44269504f + shift) - shift;
  const Vec<float> r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const integers power = (__builtin_convertvector(n, integers) + 127) << 23;
  return p * (Vec<float>)power;
}
ALWAYS_INLINE Vec<double> exponential(Vec<double> x) {
  for (int i = 0; i < LANES<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

// weights = softmax(scores) * ramp, renormalized, over n >= 1 slots. Overwrites the scores and the padding after them.
template <class real>
static void softmax(real* scores, i64 n, const real* ramp, real* weights) {
  constexpr int W = LANES<real>;
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

// out = (x - mean) / sigma and rstd = 1 / sigma of each row.
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

// out += gradient of the input of `standardize`, given the gradient of its output.
template <class real>
static void standardize_backward(const real* grad, const real* normed, const real* rstd, i64 rows, i64 D, real* out) {
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
