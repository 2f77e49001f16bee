// Feedback's segment, forward and backward.
#include "call.h"

namespace stairwell {

void feedback_forward(Arguments& from) {
  const PlanArguments given(from);
  const i64 instruction_set = from.integer();
  const bool poison = from.integer();
  from.end();
  by_type(given.inputs, [&](auto type) {
    Call<decltype(type)> call(given);
    call.read(call.feedback_lengths(), given);
    call.run(true, instruction_set, poison);
  });
}

void feedback_backward(Arguments& from) {
  const PlanArguments given(from);
  const Tensor y = from.tensor(), memory = from.tensor();
  const Tensors gradients = from.tensors();
  const i64 begin = from.integer(), end = from.integer(), instruction_set = from.integer();
  const bool poison = from.integer();
  from.end();
  by_type(given.inputs, [&](auto type) {
    Call<decltype(type)> call(given);
    call.read(call.feedback_lengths(), given);
    call.read_gradients({y, memory}, gradients, begin, end, call.plan.T, call.plan.T);
    call.run(false, instruction_set, poison);
  });
}

}  // namespace stairwell
