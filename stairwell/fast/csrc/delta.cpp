// The operators `stairwell::delta_forward` and `stairwell::delta_backward`: the matrices of a DeltaNet along a call.
#include "call.h"

namespace stairwell {
namespace {

template <class real>
Delta<real> read_call(const Tensor& q, const Tensors& given) {
  Delta<real> call{};
  call.B = q.size(0), call.T = q.size(1), call.H = q.size(2), call.K = q.size(3);
  call.n = given[0].size(2);
  Reader only(given);
  call.k = only.next<const real>();
  call.v = only.next<const real>();
  call.b = only.next<const real>();
  call.a = only.next<const real>();
  call.start = only.next<const bool>();
  call.before = only.next<const real>();
  const Tensors asked{q};
  call.q = Reader(asked).next<const real>();
  return call;
}

// The heads of all rows, shared among threads; each thread has a workspace of its own.
template <class real>
void run(const Delta<real>& call, i64 instruction_set, bool poison) {
  const Kernels<real>& use = kernels<real>(instruction_set);
  torch::stable::parallel_for(0, call.B * call.H, 1, [&](i64 first, i64 last) {
    const Scratch<real> work(use.delta_workspace(call), poison);
    use.delta(call, first, last, work.data());
  });
}

// given: k, v, b, a (what the gate leaves) or none, start or none, the matrices before. made: what is read, the matrices
// after.
void delta_forward(Tensor q, Tensors given, Tensors made, i64 instruction_set, bool poison) {
  by_type(q, [&](auto type) {
    using real = decltype(type);
    Delta<real> call = read_call<real>(q, given);
    Reader next(made);
    call.read = next.template next<real>();
    call.after = next.template next<real>();
    run(call, instruction_set, poison);
  });
}

// gradients: of what is read and of the matrices after. made: gradients of q, k, v, b, log a, the matrices before.
void delta_backward(Tensor q, Tensors given, Tensors gradients, Tensors made, i64 instruction_set, bool poison) {
  by_type(q, [&](auto type) {
    using real = decltype(type);
    Delta<real> call = read_call<real>(q, given);
    Reader come(gradients), next(made);
    call.d_read = come.template next<const real>();
    call.d_after = come.template next<const real>();
    for (real** to : {&call.d_q, &call.d_k, &call.d_v, &call.d_b, &call.d_log_a, &call.d_before})
      *to = next.template next<real>();
    run(call, instruction_set, poison);
  });
}

}  // namespace
}  // namespace stairwell

STABLE_TORCH_LIBRARY_FRAGMENT(stairwell, m) {
  m.def("delta_forward(Tensor q, Tensor[] given, Tensor(a!)[] made, int instruction_set, bool poison) -> ()");
  m.def(
      "delta_backward(Tensor q, Tensor[] given, Tensor[] gradients, Tensor(a!)[] made, int instruction_set, bool "
      "poison) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(stairwell, CPU, m) {
  m.impl("delta_forward", TORCH_BOX(&stairwell::delta_forward));
  m.impl("delta_backward", TORCH_BOX(&stairwell::delta_backward));
}
