// The operators `stairwell::log_sums` and `stairwell::highest`: what a search asks of the scores of all symbols.
#include "call.h"

namespace stairwell {
namespace {

// Does something for each row of a tensor (rows, V), the rows shared among threads.
template <class Row>
void for_rows(const Tensor& scores, Row row) {
  STD_TORCH_CHECK(scores.dim() == 2 && scores.is_contiguous() && scores.size(1) > 0,
                  "stairwell: scores must be (rows, symbols), contiguous");
  torch::stable::parallel_for(0, scores.size(0), 1, [&](i64 first, i64 last) {
    for (i64 r = first; r < last; ++r) row(r);
  });
}

template <class type>
type* data(const Tensor& tensor) {
  return static_cast<type*>(tensor.data_ptr());
}

void log_sums(Tensor scores, Tensor sums, i64 instruction_set) {
  by_type(scores, [&](auto type) {
    using real = decltype(type);
    const i64 V = scores.size(1);
    for_rows(scores, [&](i64 r) {
      data<real>(sums)[r] = kernels<real>(instruction_set).log_sum(data<real>(scores) + r * V, V);
    });
  });
}

void highest(Tensor scores, Tensor values, Tensor symbols, i64 instruction_set) {
  by_type(scores, [&](auto type) {
    using real = decltype(type);
    const i64 V = scores.size(1), k = values.size(1);
    STD_TORCH_CHECK(k <= V, "stairwell: there are only ", V, " symbols");
    for_rows(scores, [&](i64 r) {
      kernels<real>(instruction_set)
          .highest(data<real>(scores) + r * V, V, k, data<real>(values) + r * k, data<i64>(symbols) + r * k);
    });
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
