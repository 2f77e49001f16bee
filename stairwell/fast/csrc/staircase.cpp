// The operators `stairwell::staircase_forward` and `stairwell::staircase_backward`: a plan as Feedback's, and the stairs.
#include "call.h"

namespace stairwell {
namespace {

constexpr i64 TILE = 64;  // most rows of a tile: what a short diagonal sees is small, so more rows share the weights

// Everything that the stairs of a call point to.
template <class real>
class StairsCall {
 public:
  StairsCall(Call<real>& call, const std::vector<i64>& sizes, const Tensors& tensors) : A(call.plan.A) {
    size_t at = 0;
    for (i64* to : {&stairs.T, &stairs.S, &stairs.O, &stairs.before, &stairs.now, &stairs.slots, &stairs.kept_width,
                    &passes})
      *to = sizes[at++];
    stairs.caches_input = sizes[at++];
    const auto wanted = at + 9 * stairs.S + call.plan.T;
    STD_TORCH_CHECK(sizes.size() == wanted, "stairwell: a staircase of other sizes");
    diagonals.resize(stairs.S);
    for (auto& d : diagonals)
      for (i64* to : {&d.place, &d.t, &d.begin, &d.on, &d.off, &d.low, &d.high, &d.old_first, &d.old_last})
        *to = sizes[at++];
    pass.assign(sizes.begin() + at, sizes.end());
    Reader next(tensors);
    read(next, levels, A + 1);
    read(next, old, A);
    read(next, kept, passes * A);
    read(next, relu_kept, passes * A);
    // Backward asks a layer whether its ReLU was dropped anywhere.
    for (i64 a = 0; a < A; ++a) call.layers[a].relu_kept = relu_kept[a];
    stairs.diagonals = diagonals.data();
    stairs.pass = pass.data();
    stairs.levels = levels.data();
    stairs.old = old.data();
    stairs.kept = kept.data();
    stairs.relu_kept = relu_kept.data();
  }

  void read_gradients(const Tensors& tensors, i64 first, i64 last) {
    Reader next(tensors);
    read(next, d_old, A);
    read(next, d_keys, A);
    read(next, d_values, A);
    read(next, extra, A + 1);
    stairs.later = next.template next<real>();
    stairs.d_old = d_old.data();
    stairs.d_keys = d_keys.data();
    stairs.d_values = d_values.data();
    stairs.extra = extra.data();
    stairs.first = first;
    stairs.last = last;
  }

  void run(Call<real>& call, bool forward, i64 instruction_set, bool poison) {
    const Kernels<real>& use = kernels<real>(instruction_set);
    const auto workspace = [&](const Plan<real>& plan, i64 rows) { return use.climb_workspace(plan, stairs, rows); };
    const auto walk = [&](const Plan<real>& plan, i64 first, i64 last, real* work) {
      (forward ? use.climb : use.descend)(plan, stairs, first, last, work);
    };
    call.run(forward, use, workspace, walk, TILE, poison);
  }

 private:
  template <class type>
  void read(Reader& next, std::vector<type*>& to, i64 many) {
    for (i64 i = 0; i < many; ++i) to.push_back(next.template next<type>());
  }

  i64 A, passes;
  Stairs<real> stairs{};
  std::vector<Diagonal> diagonals;
  std::vector<i64> pass;
  std::vector<real*> levels, d_old, d_keys, d_values;
  std::vector<const real*> old, extra;
  std::vector<const bool*> kept, relu_kept;
};

void staircase_forward(std::vector<i64> sizes, double eps, double attention_rate, double relu_rate,
                       double residual_rate, Tensors inputs, Tensors masks, Tensors trace, std::vector<i64> stairs,
                       Tensors levels, i64 instruction_set, bool poison) {
  by_type(inputs[0], [&](auto type) {
    Call<decltype(type)> call(sizes, eps, attention_rate, relu_rate, residual_rate, inputs, masks, trace);
    StairsCall<decltype(type)>(call, stairs, levels).run(call, true, instruction_set, poison);
  });
}

void staircase_backward(std::vector<i64> sizes, double eps, double attention_rate, double relu_rate,
                        double residual_rate, Tensors inputs, Tensors masks, Tensors trace, std::vector<i64> stairs,
                        Tensors levels, Tensor y, Tensors gradients, Tensors stairs_gradients, i64 begin, i64 end,
                        i64 first, i64 last, i64 instruction_set, bool poison) {
  by_type(inputs[0], [&](auto type) {
    Call<decltype(type)> call(sizes, eps, attention_rate, relu_rate, residual_rate, inputs, masks, trace);
    StairsCall<decltype(type)> climb(call, stairs, levels);
    call.read_gradients(y, y, gradients, begin, end);
    climb.read_gradients(stairs_gradients, first, last);
    climb.run(call, false, instruction_set, poison);
  });
}

}  // namespace
}  // namespace stairwell

STABLE_TORCH_LIBRARY_FRAGMENT(stairwell, m) {
  m.def(
      "staircase_forward(int[] sizes, float eps, float attention_rate, float relu_rate, float residual_rate, Tensor[] "
      "inputs, Tensor[] masks, Tensor(a!)[] trace, int[] stairs, Tensor(b!)[] levels, int instruction_set, bool "
      "poison) -> ()");
  m.def(
      "staircase_backward(int[] sizes, float eps, float attention_rate, float relu_rate, float residual_rate, "
      "Tensor[] inputs, Tensor[] masks, Tensor(a!)[] trace, int[] stairs, Tensor[] levels, Tensor y, Tensor(b!)[] "
      "gradients, Tensor(c!)[] stairs_gradients, int begin, int end, int first, int last, int instruction_set, bool "
      "poison) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(stairwell, CPU, m) {
  m.impl("staircase_forward", TORCH_BOX(&stairwell::staircase_forward));
  m.impl("staircase_backward", TORCH_BOX(&stairwell::staircase_backward));
}
