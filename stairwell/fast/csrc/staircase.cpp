// Operators of a Staircase segment: a plan as for Feedback, and the Staircase's own part.
#include "call.h"

namespace stairwell {
namespace {

constexpr i64 MAX_STAIRCASE_TILE = 64;  // streams per tile: short steps need little cache

// Storage of everything that a StaircasePlan points to.
template <class real>
class StaircaseCall {
 public:
  StaircaseCall(Call<real>& call, const std::vector<i64>& sizes) : A(call.plan.A) {
    constexpr size_t FIXED = 9;
    STAIRWELL_CHECK(sizes.size() > FIXED, "stairwell: too few sizes of a staircase");
    for (i64 size : sizes) STAIRWELL_CHECK(size >= 0, "stairwell: a size is negative");
    size_t at = 0;
    for (i64* to : {&staircase.T, &staircase.S, &staircase.O, &staircase.cached_before, &staircase.cached_now,
                    &staircase.slots, &staircase.mask_width, &passes})
      *to = sizes[at++];
    staircase.caches_input = sizes[at++];
    STAIRWELL_CHECK(!call.plan.rounds_kv, "stairwell: keys and values of a staircase are not stored in bfloat16");
    const i64 n = static_cast<i64>(sizes.size() - FIXED);
    STAIRWELL_CHECK(0 < staircase.S && staircase.S <= n && call.plan.T <= n && 9 * staircase.S + call.plan.T == n &&
                        staircase.cached_now <= staircase.T && 0 < passes && passes <= n,
                    "stairwell: sizes of the staircase are inconsistent");
    steps.resize(staircase.S);
    for (auto& step : steps)
      for (i64* to : {&step.offset, &step.tokens, &step.start, &step.entering, &step.leaving, &step.cache_first,
                      &step.cache_last, &step.pass_kv_first, &step.pass_kv_last})
        *to = sizes[at++];
    pass.assign(sizes.begin() + at, sizes.end());
    for (i64 index : pass) STAIRWELL_CHECK(index < passes, "stairwell: pass out of range");
    check_steps(call.plan);
    for (const auto& layer : call.layers)
      STAIRWELL_CHECK(layer.span == call.plan.R, "stairwell: all layers of a staircase must have the same span");
    staircase.steps = steps.data();
    staircase.pass = pass.data();
  }

  // Layer outputs are stored for all tokens, layer activations for one step or, if gradients are needed, for all.
  Lengths lengths(const Plan<real>& plan) const {
    const i64 saved = plan.needs_gradient ? plan.T : longest;
    return {staircase.T, saved, plan.T, 0, staircase.cached_now, staircase.slots, staircase.cached_before};
  }

  void read(Call<real>& call, const Tensors& tensors) {
    const Plan<real>& p = call.plan;
    PointerList next(tensors, "the staircase's tensors");
    read(next, layer_outputs, A + 1, {p.T, p.B, p.D});
    read(next, pass_kv, A, {p.B, staircase.O, 2 * p.H * p.K});
    for (i64 i = 0; i < passes * A; ++i)
      attention_masks.push_back(next.template optional<const bool>({p.B, p.H, staircase.T, staircase.mask_width}));
    for (i64 i = 0; i < passes * A; ++i)
      relu_masks.push_back(next.template optional<const bool>({p.B, staircase.T, p.F}));
    next.end();
    for (i64 i = 0; i < passes * A; ++i)
      STAIRWELL_CHECK(!attention_masks[i] || (staircase.mask_width > p.R && call.layers[i % A].self.used),
                      "stairwell: a mask has too few distances");
    // Backward only needs to know whether ReLU has dropout.
    for (i64 a = 0; a < A; ++a) call.layers[a].relu_mask = relu_masks[a];
    staircase.layer_outputs = layer_outputs.data();
    staircase.pass_kv = pass_kv.data();
    staircase.attention_masks = attention_masks.data();
    staircase.relu_masks = relu_masks.data();
  }

  void read_gradients(const Plan<real>& p, const Tensors& tensors, i64 first, i64 last) {
    STAIRWELL_CHECK(0 <= first && first < last && last <= staircase.S && steps[first].offset == p.begin &&
                        steps[last - 1].offset + steps[last - 1].tokens == p.end,
                    "stairwell: the range of steps is invalid");
    PointerList next(tensors, "the staircase's gradients");
    read(next, d_pass_kv, A, {p.B, staircase.O, 2 * p.H * p.K});
    read(next, d_keys, A, {p.B, p.H, staircase.slots, p.K});
    read(next, d_values, A, {p.B, p.H, staircase.slots, p.K});
    for (i64 l = 0; l <= A; ++l) grad_from_state.push_back(next.template optional<const real>({p.T, p.B, p.D}));
    staircase.d_next = next.template next<real>({longest, p.B, p.D});
    next.end();
    staircase.d_pass_kv = d_pass_kv.data();
    staircase.d_keys = d_keys.data();
    staircase.d_values = d_values.data();
    staircase.grad_from_state = grad_from_state.data();
    staircase.first_step = first;
    staircase.last_step = last;
  }

  void run(Call<real>& call, bool forward, i64 instruction_set, bool fill_nan) {
    const Kernels<real>& use = kernels<real>(instruction_set);
    const auto workspace = [&](const Plan<real>& plan, i64 batch) {
      return use.staircase_workspace(plan, staircase, batch);
    };
    const auto loop = [&](const Plan<real>& plan, i64 first, i64 last, real* work) {
      (forward ? use.staircase_forward : use.staircase_backward)(plan, staircase, first, last, work);
    };
    call.run(forward, use, workspace, loop, MAX_STAIRCASE_TILE, fill_nan);
  }

 private:
  template <class type>
  void read(PointerList& next, std::vector<type*>& to, i64 n, std::initializer_list<i64> shape) {
    for (i64 i = 0; i < n; ++i) to.push_back(next.template next<type>(shape));
  }

  // Check that every index that the kernels derive from a step is within the tensors.
  void check_steps(const Plan<real>& plan) {
    i64 offset = 0, finished = 0, staying = 0;
    for (const auto& step : steps) {
      // A number larger than the plan's sizes could overflow in the sums below.
      const i64 most = std::max({plan.T, staircase.T, staircase.slots, staircase.O});
      for (i64 number : {step.tokens, step.start, step.entering, step.leaving, step.cache_first, step.cache_last,
                         step.pass_kv_first, step.pass_kv_last})
        STAIRWELL_CHECK(number <= most, "stairwell: a step exceeds the call");
      finished += step.leaving;
      const bool tokens = step.offset == offset && 0 < step.tokens && step.start + step.tokens <= staircase.T &&
                          step.entering <= step.tokens && step.leaving <= step.tokens &&
                          step.tokens - step.entering == staying && finished <= staircase.T;
      const bool slots = step.cache_first <= step.cache_last &&
                         step.cache_last <= staircase.cached_before + staircase.cached_now &&
                         step.pass_kv_first <= step.pass_kv_last && step.pass_kv_last <= staircase.O &&
                         step.context() + step.tokens <= staircase.slots &&
                         step.context() + step.tokens - step.cache_first <= plan.R + 1;
      STAIRWELL_CHECK(tokens && slots, "stairwell: a step exceeds the call");
      offset += step.tokens;
      staying = step.tokens - step.leaving;
      longest = std::max(longest, step.tokens);
    }
    STAIRWELL_CHECK(offset == plan.T && plan.attend_to_current && plan.n_groups == A && plan.G == 1 && plan.J == 0,
                    "stairwell: sizes of the staircase are inconsistent");
  }

  i64 A, passes, longest = 0;
  StaircasePlan<real> staircase{};
  std::vector<StaircaseStep> steps;
  std::vector<i64> pass;
  std::vector<real*> layer_outputs, d_pass_kv, d_keys, d_values;
  std::vector<const real*> pass_kv, grad_from_state;
  std::vector<const bool*> attention_masks, relu_masks;
};

}  // namespace

void staircase_forward(Arguments& from) {
  const PlanArguments arguments(from);
  const std::vector<i64> staircase = from.integers();
  const Tensors layer_outputs = from.tensors();
  const i64 instruction_set = from.integer();
  const bool fill_nan = from.integer();
  from.end();
  dispatch_type(arguments.inputs, [&](auto type) {
    Call<decltype(type)> call(arguments);
    StaircaseCall<decltype(type)> segment(call, staircase);
    call.read(segment.lengths(call.plan), arguments);
    call.require_state_kv();
    segment.read(call, layer_outputs);
    segment.run(call, true, instruction_set, fill_nan);
  });
}

void staircase_backward(Arguments& from) {
  const PlanArguments arguments(from);
  const std::vector<i64> staircase = from.integers();
  const Tensors layer_outputs = from.tensors();
  const Tensor y = from.tensor();
  const Tensors gradients = from.tensors(), staircase_gradients = from.tensors();
  const i64 begin = from.integer(), end = from.integer(), first = from.integer(), last = from.integer();
  const i64 instruction_set = from.integer();
  const bool fill_nan = from.integer();
  from.end();
  dispatch_type(arguments.inputs, [&](auto type) {
    Call<decltype(type)> call(arguments);
    StaircaseCall<decltype(type)> segment(call, staircase);
    call.read(segment.lengths(call.plan), arguments);
    segment.read(call, layer_outputs);
    call.read_gradients({y}, gradients, begin, end, end - begin, 0);
    segment.read_gradients(call.plan, staircase_gradients, first, last);
    segment.run(call, false, instruction_set, fill_nan);
  });
}

}  // namespace stairwell
