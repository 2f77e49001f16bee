// Operators of a DeltaNet layer.
#include "call.h"

namespace stairwell {
namespace {

// The arguments of both directions. shape: B, T, n, H, K
struct DeltaArguments {
  explicit DeltaArguments(Arguments& from) : q(from.tensor()), inputs(from.tensors()), shape(from.integers()) {}

  Tensor q;
  Tensors inputs;
  std::vector<i64> shape;
};

template <class real>
Delta<real> read_call(const DeltaArguments& arguments) {
  STAIRWELL_CHECK(arguments.shape.size() == 5, "stairwell: shape must have five sizes: B, T, n, H, K");
  for (i64 size : arguments.shape) STAIRWELL_CHECK(size > 0, "stairwell: a size is 0");
  Delta<real> call{};
  const i64 B = call.B = arguments.shape[0], T = call.T = arguments.shape[1], n = call.n = arguments.shape[2];
  const i64 H = call.H = arguments.shape[3], K = call.K = arguments.shape[4];
  const Tensors query{arguments.q};
  call.q = PointerList(query, "q").next<const real>({B, T, H, K});
  PointerList next(arguments.inputs, "inputs");
  call.k = next.next<const real>({B, T, n, H, K});
  call.v = next.next<const real>({B, T, n, H, K});
  call.b = next.next<const real>({B, T, n, H});
  call.a = next.optional<const real>({B, T, H});
  call.start = next.optional<const bool>({B, T});
  call.S_before = next.next<const real>({B, H, K, K});
  next.end();
  return call;
}

// All heads of the batch, distributed over threads. Each thread has its own workspace.
template <class real>
void run(const Delta<real>& call, i64 instruction_set, bool fill_nan) {
  const Kernels<real>& use = kernels<real>(instruction_set);
  parallel_for(0, call.B * call.H, 1, [&](i64 first, i64 last) {
    const Scratch<real> work(use.delta_workspace(call), fill_nan);
    use.delta(call, first, last, work.data());
  });
}

}  // namespace

// inputs: k, v, b, a (decay of the gate) or none, start or none, S before. outputs: o, S after.
void delta_forward(Arguments& from) {
  const DeltaArguments arguments(from);
  const Tensors outputs = from.tensors();
  const i64 instruction_set = from.integer();
  const bool fill_nan = from.integer();
  from.end();
  dispatch_type({arguments.q}, [&](auto type) {
    using real = decltype(type);
    Delta<real> call = read_call<real>(arguments);
    PointerList next(outputs, "outputs");
    call.o = next.template next<real>({call.B, call.T, call.H, call.K});
    call.S_after = next.template next<real>({call.B, call.H, call.K, call.K});
    next.end();
    run(call, instruction_set, fill_nan);
  });
}

// gradients: of o and of S after. outputs: gradients of q, k, v, b, log a, S before.
void delta_backward(Arguments& from) {
  const DeltaArguments arguments(from);
  const Tensors gradients = from.tensors(), outputs = from.tensors();
  const i64 instruction_set = from.integer();
  const bool fill_nan = from.integer();
  from.end();
  dispatch_type({arguments.q}, [&](auto type) {
    using real = decltype(type);
    Delta<real> call = read_call<real>(arguments);
    const i64 B = call.B, T = call.T, n = call.n, H = call.H, K = call.K;
    PointerList incoming(gradients, "gradients"), next(outputs, "outputs");
    call.d_o = incoming.template next<const real>({B, T, H, K});
    call.d_S_after = incoming.template next<const real>({B, H, K, K});
    incoming.end();
    call.d_q = next.template next<real>({B, T, H, K});
    call.d_k = next.template next<real>({B, T, n, H, K});
    call.d_v = next.template next<real>({B, T, n, H, K});
    call.d_b = next.template next<real>({B, T, n, H});
    call.d_log_a = next.template next_if<real>(call.a, {B, T, H});
    call.d_S_before = next.template next<real>({B, H, K, K});
    next.end();
    run(call, instruction_set, fill_nan);
  });
}

}  // namespace stairwell
