// The operators `stairwell::delta_forward` and `stairwell::delta_backward`: the matrices of a DeltaNet along a call.
#include "call.h"

namespace stairwell {
namespace {

template <class real>
Delta<real> read_call(const Tensor& q, const Tensors& given) {
  STD_TORCH_CHECK(q.dim() == 4 && !given.empty() && given[0].dim() == 5, "stairwell: corrections of another shape");
  Delta<real> call{};
  const i64 B = call.B = q.size(0), T = call.T = q.size(1), H = call.H = q.size(2), K = call.K = q.size(3);
  const i64 n = call.n = given[0].size(2);
  for (i64 size : {B, T, H, K, n}) STD_TORCH_CHECK(size > 0, "stairwell: a size is 0");
  call.q = elements_of<const real>(q);
  Reader next(given, "given");
  call.k = next.next<const real>({B, T, n, H, K});
  call.v = next.next<const real>({B, T, n, H, K});
  call.b = next.next<const real>({B, T, n, H});
  call.a = next.optional<const real>({B, T, H});
  call.start = next.optional<const bool>({B, T});
  call.before = next.next<const real>({B, H, K, K});
  next.end();
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
  by_type({q}, [&](auto type) {
    using real = decltype(type);
    Delta<real> call = read_call<real>(q, given);
    Reader next(made, "made");
    call.read = next.template next<real>({call.B, call.T, call.H, call.K});
    call.after = next.template next<real>({call.B, call.H, call.K, call.K});
    next.end();
    run(call, instruction_set, poison);
  });
}

// gradients: of what is read and of the matrices after. made: gradients of q, k, v, b, log a, the matrices before.
void delta_backward(Tensor q, Tensors given, Tensors gradients, Tensors made, i64 instruction_set, bool poison) {
  by_type({q}, [&](auto type) {
    using real = decltype(type);
    Delta<real> call = read_call<real>(q, given);
    const i64 B = call.B, T = call.T, n = call.n, H = call.H, K = call.K;
    Reader come(gradients, "gradients"), next(made, "made");
    call.d_read = come.template next<const real>({B, T, H, K});
    call.d_after = come.template next<const real>({B, H, K, K});
    come.end();
    call.d_q = next.template next<real>({B, T, H, K});
    call.d_k = next.template next<real>({B, T, n, H, K});
    call.d_v = next.template next<real>({B, T, n, H, K});
    call.d_b = next.template next<real>({B, T, n, H});
    call.d_log_a = next.template next_if<real>(call.a, {B, T, H});
    call.d_before = next.template next<real>({B, H, K, K});
    next.end();
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
