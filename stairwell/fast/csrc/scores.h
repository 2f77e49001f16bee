// Reductions of the scores of a vocabulary: log-sum-exp and top k.

constexpr i64 BLOCK = 64;  // scores that are compared together

template <class real>
ALWAYS_INLINE real max_of(const real* x, i64 n) {
  real top = x[0];
#pragma omp simd reduction(max : top)
  for (i64 i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// log(sum of e^x) over n >= 1 scores.
template <class real>
static real logsumexp(const real* x, i64 n) {
  constexpr int W = LANES<real>;
  const real top = max_of(x, n);
  real sum = 0;
  // The maximum cannot be subtracted if it is infinite.
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
  sum = sum_lanes<real>(first + second);
  for (i64 i = even; i < n; ++i) sum += __builtin_exp(x[i] - top);
  return top + __builtin_log(sum);
}

// Store the highest k of n scores that are not below `floor`, in descending order, the lower token id first on ties.
// Return the number stored.
template <class real>
static i64 collect_topk(const real* x, i64 n, i64 k, real floor, real* scores, i64* tokens) {
  i64 count = 0;
  for (i64 begin = 0; begin < n; begin += BLOCK) {
    const i64 end = min(begin + BLOCK, n);
    int any = 0;
#pragma omp simd reduction(| : any)
    for (i64 i = begin; i < end; ++i) any |= !(x[i] < floor);
    if (!any) continue;
    for (i64 i = begin; i < end; ++i) {
      if (x[i] < floor || (count == k && x[i] <= scores[k - 1])) continue;
      i64 at = count < k ? count++ : k - 1;
      for (; at > 0 && scores[at - 1] < x[i]; --at) {
        scores[at] = scores[at - 1];
        tokens[at] = tokens[at - 1];
      }
      scores[at] = x[i];
      tokens[at] = i;
    }
    if (count == k && scores[k - 1] > floor) floor = scores[k - 1];
  }
  return count;
}

// Store the k <= n highest of n scores in descending order, and their token ids.
template <class real>
static void topk(const real* x, i64 n, i64 k, real* scores, i64* tokens) {
  const real none = -static_cast<real>(__builtin_inf());
  real floor = none;
  if (k <= BLOCK && n >= 2 * BLOCK) {
    // Split the scores into BLOCK groups. At least k scores reach the k-th highest group maximum, and seldom many more,
    // so it is a floor for the search.
    real tops[BLOCK];
    for (i64 j = 0; j < BLOCK; ++j) tops[j] = x[j];
    for (i64 i = BLOCK; i + BLOCK <= n; i += BLOCK)
      for (i64 j = 0; j < BLOCK; ++j) tops[j] = x[i + j] > tops[j] ? x[i + j] : tops[j];
    collect_topk(tops, BLOCK, k, none, scores, tokens);
    floor = scores[k - 1];
  }
  // Fewer than k are found only if NaN was among the group maxima.
  if (collect_topk(x, n, k, floor, scores, tokens) < k) collect_topk(x, n, k, none, scores, tokens);
}
