// The operators `stairwell::log_sums` and `stairwell::highest`: what a search asks of the scores of all symbols.
#include "call.h"

namespace stairwell {
namespace {

// Of scores (rows, V).
std::pair<i64, i64> sizes(const Tensor& scores) {
  STD_TORCH_CHECK(scores.dim() == 2 && scores.size(1) > 0, "stairwell: scores must be (rows, symbols)");
  return {scores.size(0), scores.size(1)};
}

// Does something for each row, the rows shared among threads.
template <class Row>
void for_rows(i64 rows, Row row) {
  torch::stable::parallel_for(0, rows, 1, [&](i64 first, i64 last) {
    for (i64 r = first; r < last; ++r) row(r);
  });
}

void log_sums(Tensor scores, Tensor sums, i64 instruction_set) {
  by_type({scores}, [&](auto type) {
    using real = decltype(type);
    const Kernels<real>& use = kernels<real>(instruction_set);
    const auto [rows, V] = sizes(scores);
    const Tensors given{scores, sums};
    Reader next(given, "scores and sums");
    const real* from = next.template next<const real>({rows, V});
    real* to = next.template next<real>({rows});
    for_rows(rows, [&, V = V](i64 r) { to[r] = use.log_sum(from + r * V, V); });
  });
}

void highest(Tensor scores, Tensor values, Tensor symbols, i64 instruction_set) {
  by_type({scores}, [&](auto type) {
    using real = decltype(type);
    const Kernels<real>& use = kernels<real>(instruction_set);
    const auto [rows, V] = sizes(scores);
    STD_TORCH_CHECK(values.dim() == 2, "stairwell: values must be (rows, how many)");
    const i64 k = values.size(1);
    STD_TORCH_CHECK(0 < k && k <= V, "stairwell: there are only ", V, " symbols");
    const Tensors given{scores, values, symbols};
    Reader next(given, "scores, values and symbols");
    const real* from = next.template next<const real>({rows, V});
    real* to = next.template next<real>({rows, k});
    i64* found = next.template next<i64>({rows, k});
    for_rows(rows, [&, V = V](i64 r) { use.highest(from + r * V, V, k, to + r * k, found + r * k); });
  });
}

}  // namespace
}  // namespace stairwell

STABLE_TORCH_LIBRARY_FRAGMENT(stairwell, m) {
  m.def("log_sums(Tensor scores, Tensor(a!) sums, int instruction_set) -> ()");
  m.def("highest(Tensor scores, Tensor(a!) values, Tensor(b!) symbols, int instruction_set) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(stairwell, CPU, m) {
  m.impl("log_sums", TORCH_BOX(&stairwell::log_sums));
  m.impl("highest", TORCH_BOX(&stairwell::highest));
}
