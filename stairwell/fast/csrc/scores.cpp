// Operators of beam search: log-sum-exp and top k over the vocabulary.
#include "call.h"

namespace stairwell {
namespace {

// Call f(r) for every row, distributed over threads.
template <class F>
void for_rows(i64 rows, const F& f) {
  parallel_for(0, rows, 1, [&](i64 first, i64 last) {
    for (i64 r = first; r < last; ++r) f(r);
  });
}

}  // namespace

// scores (rows, V) -> sums (rows)
void logsumexp(Arguments& from) {
  const Tensors given{from.tensor(), from.tensor()};
  const i64 rows = from.integer(), V = from.integer(), instruction_set = from.integer();
  from.end();
  STAIRWELL_CHECK(rows >= 0 && V > 0, "stairwell: scores must be (rows, vocabulary size)");
  dispatch_type(given, [&](auto type) {
    using real = decltype(type);
    const Kernels<real>& use = kernels<real>(instruction_set);
    PointerList next(given, "scores and sums");
    const real* scores = next.template next<const real>({rows, V});
    real* sums = next.template next<real>({rows});
    for_rows(rows, [&](i64 r) { sums[r] = use.logsumexp(scores + r * V, V); });
  });
}

// scores (rows, V) -> values (rows, k) and token ids (rows, k)
void topk(Arguments& from) {
  const Tensors given{from.tensor(), from.tensor(), from.tensor()};
  const i64 rows = from.integer(), V = from.integer(), k = from.integer(), instruction_set = from.integer();
  from.end();
  STAIRWELL_CHECK(rows >= 0 && V > 0, "stairwell: scores must be (rows, vocabulary size)");
  STAIRWELL_CHECK(0 < k && k <= V, "stairwell: k is ", k, ", but the vocabulary has ", V, " tokens");
  dispatch_type(given, [&](auto type) {
    using real = decltype(type);
    const Kernels<real>& use = kernels<real>(instruction_set);
    PointerList next(given, "scores, values and token ids");
    const real* scores = next.template next<const real>({rows, V});
    real* values = next.template next<real>({rows, k});
    i64* tokens = next.template next<i64>({rows, k});
    for_rows(rows, [&](i64 r) { use.topk(scores + r * V, V, k, values + r * k, tokens + r * k); });
  });
}

}  // namespace stairwell
