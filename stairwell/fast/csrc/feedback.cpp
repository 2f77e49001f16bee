// The operators `stairwell::feedback_forward` and `stairwell::feedback_backward`, on LibTorch's stable ABI.
#include "call.h"

namespace stairwell {
namespace {

// Changes with the order of the lists that the operators take: an extension built before is not used.
constexpr i64 LAYOUT = 7;

i64 layout() { return LAYOUT; }

void feedback_forward(std::vector<i64> sizes, double eps, double attention_rate, double relu_rate, double residual_rate,
                      Tensors inputs, Tensors masks, Tensors trace, i64 instruction_set, bool poison) {
  by_type(inputs, [&](auto type) {
    Call<decltype(type)> call(sizes, eps, attention_rate, relu_rate, residual_rate);
    call.read(call.feedback_lengths(), inputs, masks, trace);
    call.run(true, instruction_set, poison);
  });
}

void feedback_backward(std::vector<i64> sizes, double eps, double attention_rate, double relu_rate,
                       double residual_rate, Tensors inputs, Tensors masks, Tensors trace, Tensor y, Tensor memory,
                       Tensors gradients, i64 begin, i64 end, i64 instruction_set, bool poison) {
  by_type(inputs, [&](auto type) {
    Call<decltype(type)> call(sizes, eps, attention_rate, relu_rate, residual_rate);
    call.read(call.feedback_lengths(), inputs, masks, trace);
    call.read_gradients({y, memory}, gradients, begin, end, call.plan.T, call.plan.T);
    call.run(false, instruction_set, poison);
  });
}

}  // namespace
}  // namespace stairwell

STABLE_TORCH_LIBRARY(stairwell, m) {
  m.def("layout() -> int");
  m.def("best_instruction_set() -> int");
  m.def(
      "feedback_forward(int[] sizes, float eps, float attention_rate, float relu_rate, float residual_rate, Tensor[] "
      "inputs, Tensor[] masks, Tensor(a!)[] trace, int instruction_set, bool poison) -> ()");
  m.def(
      "feedback_backward(int[] sizes, float eps, float attention_rate, float relu_rate, float residual_rate, Tensor[] "
      "inputs, Tensor[] masks, Tensor[] trace, Tensor y, Tensor memory, Tensor(a!)[] gradients, int begin, int end, "
      "int instruction_set, bool poison) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(stairwell, CPU, m) {
  m.impl("feedback_forward", TORCH_BOX(&stairwell::feedback_forward));
  m.impl("feedback_backward", TORCH_BOX(&stairwell::feedback_backward));
}

STABLE_TORCH_LIBRARY_IMPL(stairwell, CompositeExplicitAutograd, m) {
  m.impl("layout", TORCH_BOX(&stairwell::layout));
  m.impl("best_instruction_set", TORCH_BOX(&stairwell::best_instruction_set));
}
