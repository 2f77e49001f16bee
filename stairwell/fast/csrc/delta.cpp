// The matrices of a DeltaNet along a call, forward and backward.
#include "call.h"

namespace stairwell {
namespace {

// The arguments of both directions. shape: B, T, n, H, K
struct DeltaArguments {
  explicit DeltaArguments(Arguments& from) : q(from.tensor()), given(from.tensors()), shape(from.integers()) {}

  Tensor q;
  Tensors given;
  std::vector<i64> shape;
};

template <class real>
Delta<real> read_call(const DeltaArguments& arguments) {
  STAIRWELL_CHECK(arguments.shape.size() == 5, "stairwell: a DeltaNet's call has five sizes");
  for (i64 size : arguments.shape) STAIRWELL_CHECK(size > 0, "stairwell: a size is 0");
  Delta<real> call{};
  const i64 B = call.B = arguments.shape[0], T = call.T = arguments.shape[1], n = call.n = arguments.shape[2];
  const i64 H = call.H = arguments.shape[3], K = call.K = arguments.shape[4];
  const Tensors query{arguments.q};
  call.q = Reader(query, "q").next<const real>({B, T, H, K});
  const Tensors& given = arguments.given;
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
  parallel_for(0, call.B * call.H, 1, [&](i64 first, i64 last) {
    const Scratch<real> work(use.delta_workspace(call), poison);
    use.delta(call, first, last, work.data());
  });
}

}  // namespace

// given: k, v, b, a (what the gate leaves) or none, start or none, the matrices before. made: what is read, the matrices
// after.
void delta_forward(Arguments& from) {
  const DeltaArguments arguments(from);
  const Tensors made = from.tensors();
  const i64 instruction_set = from.integer();
  const bool poison = from.integer();
  from.end();
  by_type({arguments.q}, [&](auto type) {
    using real = decltype(type);
    Delta<real> call = read_call<real>(arguments);
    Reader next(made, "made");
    call.read = next.template next<real>({call.B, call.T, call.H, call.K});
    call.after = next.template next<real>({call.B, call.H, call.K, call.K});
    next.end();
    run(call, instruction_set, poison);
  });
}

// gradients: of what is read and of the matrices after. made: gradients of q, k, v, b, log a, the matrices before.
void delta_backward(Arguments& from) {
  const DeltaArguments arguments(from);
  const Tensors gradients = from.tensors(), made = from.tensors();
  const i64 instruction_set = from.integer();
  const bool poison = from.integer();
  from.end();
  by_type({arguments.q}, [&](auto type) {
    using real = decltype(type);
    Delta<real> call = read_call<real>(arguments);
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

}  // namespace stairwell
