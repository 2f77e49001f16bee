// Operators of a Feedback segment.
#include "call.h"

namespace stairwell {

void feedback_forward(Arguments& from) {
  const PlanArguments arguments(from);
  const i64 schedule = from.integer(), instruction_set = from.integer();
  const bool fill_nan = from.integer();
  from.end();
  dispatch_type(arguments.inputs, [&](auto type) {
    Call<decltype(type)> call(arguments);
    call.read(call.feedback_lengths(), arguments);
    call.require_state_kv();
    call.run(true, schedule, instruction_set, fill_nan);
  });
}

void feedback_backward(Arguments& from) {
  const PlanArguments arguments(from);
  const Tensor y = from.tensor(), memory = from.tensor();
  const Tensors gradients = from.tensors();
  const i64 begin = from.integer(), end = from.integer(), schedule = from.integer(), instruction_set = from.integer();
  const bool fill_nan = from.integer();
  from.end();
  dispatch_type(arguments.inputs, [&](auto type) {
    Call<decltype(type)> call(arguments);
    call.read(call.feedback_lengths(), arguments);
    call.read_gradients({y, memory}, gradients, begin, end, call.plan.T, call.plan.T);
    call.run(false, schedule, instruction_set, fill_nan);
  });
}

}  // namespace stairwell
