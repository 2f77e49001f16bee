// The loops over a row of scores, one for each symbol: their logarithmic sum, and the highest of them.

constexpr i64 BLOCK = 64;  // scores that are looked at together

template <class real>
ALWAYS real highest_of(const real* x, i64 n) {
  real top = x[0];
#pragma omp simd reduction(max : top)
  for (i64 i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// log(sum of e^x) over n >= 1 scores.
template <class real>
static real log_sum(const real* x, i64 n) {
  constexpr int W = VL<real>;
  const real top = highest_of(x, n);
  real sum = 0;
  // An infinity cannot be subtracted.
  if (!(top - top == 0)) {
    for (i64 i = 0; i < n; ++i) sum += __builtin_exp(x[i]);
    return __builtin_log(sum);
  }
  const i64 even = n - n % (2 * W);
  Vec<real> first = {}, second = {};
  for (i64 i = 0; i < even; i += 2 * W) {
    first += exponential(load(x + i) - top);
    second += exponential(load(x + i + W) - top);
  }
  sum = total<real>(first + second);
  for (i64 i = even; i < n; ++i) sum += __builtin_exp(x[i] - top);
  return top + __builtin_log(sum);
}

// Puts those of n scores that are not below `floor` in order, at most k of them, the lower symbol first where they are
// equal; returns how many there are.
template <class real>
static i64 in_order(const real* x, i64 n, i64 k, real floor, real* scores, i64* symbols) {
  i64 found = 0;
  for (i64 begin = 0; begin < n; begin += BLOCK) {
    const i64 end = least(begin + BLOCK, n);
    int any = 0;
#pragma omp simd reduction(| : any)
    for (i64 i = begin; i < end; ++i) any |= !(x[i] < floor);
    if (!any) continue;
    for (i64 i = begin; i < end; ++i) {
      if (x[i] < floor || (found == k && x[i] <= scores[k - 1])) continue;
      i64 at = found < k ? found++ : k - 1;
      for (; at > 0 && scores[at - 1] < x[i]; --at) {
        scores[at] = scores[at - 1];
        symbols[at] = symbols[at - 1];
      }
      scores[at] = x[i];
      symbols[at] = i;
    }
    if (found == k && scores[k - 1] > floor) floor = scores[k - 1];
  }
  return found;
}

// The k <= n highest of n scores, the highest first, and their symbols.
template <class real>
static void highest(const real* x, i64 n, i64 k, real* scores, i64* symbols) {
  const real none = -static_cast<real>(__builtin_inf());
  real floor = none;
  if (k <= BLOCK && n >= 2 * BLOCK) {
    // Every BLOCK-th score belongs to one group; at least k scores are as high as the kth of the groups' highest, and
    // seldom many more.
    real tops[BLOCK];
    for (i64 j = 0; j < BLOCK; ++j) tops[j] = x[j];
    for (i64 i = BLOCK; i + BLOCK <= n; i += BLOCK)
      for (i64 j = 0; j < BLOCK; ++j) tops[j] = x[i + j] > tops[j] ? x[i + j] : tops[j];
    in_order(tops, BLOCK, k, none, scores, symbols);
    floor = scores[k - 1];
  }
  // Too few are found only where NaN has taken a place.
  if (in_order(x, n, k, floor, scores, symbols) < k) in_order(x, n, k, none, scores, symbols);
}
