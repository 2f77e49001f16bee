// The Staircases' segment, forward and backward: a plan as Feedback's, and the stairs.
#include "call.h"

namespace stairwell {
namespace {

constexpr i64 TILE = 64;  // most rows of a tile: what a short diagonal sees is small, so more rows share the weights

// Everything that the stairs of a call point to.
template <class real>
class StairsCall {
 public:
  StairsCall(Call<real>& call, const std::vector<i64>& sizes) : A(call.plan.A) {
    constexpr size_t FIXED = 9;
    STAIRWELL_CHECK(sizes.size() > FIXED, "stairwell: too few sizes of a staircase");
    for (i64 size : sizes) STAIRWELL_CHECK(size >= 0, "stairwell: a size is negative");
    size_t at = 0;
    for (i64* to : {&stairs.T, &stairs.S, &stairs.O, &stairs.before, &stairs.now, &stairs.slots, &stairs.kept_width,
                    &passes})
      *to = sizes[at++];
    stairs.caches_input = sizes[at++];
    const i64 many = static_cast<i64>(sizes.size() - FIXED);
    STAIRWELL_CHECK(0 < stairs.S && stairs.S <= many && call.plan.T <= many && 9 * stairs.S + call.plan.T == many &&
                        stairs.now <= stairs.T && 0 < passes && passes <= many,
                    "stairwell: a staircase of other sizes");
    diagonals.resize(stairs.S);
    for (auto& d : diagonals)
      for (i64* to : {&d.place, &d.t, &d.begin, &d.on, &d.off, &d.low, &d.high, &d.old_first, &d.old_last})
        *to = sizes[at++];
    pass.assign(sizes.begin() + at, sizes.end());
    for (i64 n : pass) STAIRWELL_CHECK(n < passes, "stairwell: there is no such pass");
    check_diagonals(call.plan);
    for (const auto& layer : call.layers)
      STAIRWELL_CHECK(layer.reach == call.plan.R, "stairwell: layers of a staircase look equally far");
    stairs.diagonals = diagonals.data();
    stairs.pass = pass.data();
  }

  // Between layers all tokens are kept, of layers those of one diagonal, or of all for a gradient.
  Lengths lengths(const Plan<real>& plan) const {
    return {stairs.T, plan.keep ? plan.T : longest, plan.T, 0, stairs.now, stairs.slots, stairs.before};
  }

  void read(Call<real>& call, const Tensors& tensors) {
    const Plan<real>& p = call.plan;
    Reader next(tensors, "levels");
    read(next, levels, A + 1, {p.T, p.B, p.D});
    read(next, old, A, {p.B, stairs.O, 2 * p.H * p.K});
    for (i64 i = 0; i < passes * A; ++i)
      kept.push_back(next.template optional<const bool>({p.B, p.H, stairs.T, stairs.kept_width}));
    for (i64 i = 0; i < passes * A; ++i)
      relu_kept.push_back(next.template optional<const bool>({p.B, stairs.T, p.F}));
    next.end();
    for (i64 i = 0; i < passes * A; ++i)
      STAIRWELL_CHECK(!kept[i] || (stairs.kept_width > p.R && call.layers[i % A].self.used),
                      "stairwell: a mask has too few distances");
    // Backward asks a layer whether its ReLU was dropped anywhere.
    for (i64 a = 0; a < A; ++a) call.layers[a].relu_kept = relu_kept[a];
    stairs.levels = levels.data();
    stairs.old = old.data();
    stairs.kept = kept.data();
    stairs.relu_kept = relu_kept.data();
  }

  void read_gradients(const Plan<real>& p, const Tensors& tensors, i64 first, i64 last) {
    STAIRWELL_CHECK(0 <= first && first < last && last <= stairs.S && diagonals[first].place == p.begin &&
                        diagonals[last - 1].place + diagonals[last - 1].t == p.end,
                    "stairwell: no such diagonals");
    Reader next(tensors, "the stairs' gradients");
    read(next, d_old, A, {p.B, stairs.O, 2 * p.H * p.K});
    read(next, d_keys, A, {p.B, p.H, stairs.slots, p.K});
    read(next, d_values, A, {p.B, p.H, stairs.slots, p.K});
    for (i64 level = 0; level <= A; ++level) extra.push_back(next.template optional<const real>({p.T, p.B, p.D}));
    stairs.later = next.template next<real>({longest, p.B, p.D});
    next.end();
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
  void read(Reader& next, std::vector<type*>& to, i64 many, std::initializer_list<i64> shape) {
    for (i64 i = 0; i < many; ++i) to.push_back(next.template next<type>(shape));
  }

  // Every index that the loops make of a diagonal lies within the tensors.
  void check_diagonals(const Plan<real>& plan) {
    i64 place = 0, off = 0, staying = 0;
    for (const auto& d : diagonals) {
      // A number beyond the plan's own sizes could overflow in the sums below.
      const i64 most = std::max({plan.T, stairs.T, stairs.slots, stairs.O});
      for (i64 number : {d.t, d.begin, d.on, d.off, d.low, d.high, d.old_first, d.old_last})
        STAIRWELL_CHECK(number <= most, "stairwell: a diagonal leaves its call");
      off += d.off;
      const bool tokens = d.place == place && 0 < d.t && d.begin + d.t <= stairs.T && d.on <= d.t && d.off <= d.t &&
                          d.t - d.on == staying && off <= stairs.T;
      const bool slots = d.low <= d.high && d.high <= stairs.before + stairs.now && d.old_first <= d.old_last &&
                         d.old_last <= stairs.O && d.known() + d.t <= stairs.slots &&
                         d.known() + d.t - d.low <= plan.R + 1;
      STAIRWELL_CHECK(tokens && slots, "stairwell: a diagonal leaves its call");
      place += d.t;
      staying = d.t - d.off;
      longest = std::max(longest, d.t);
    }
    STAIRWELL_CHECK(place == plan.T && plan.itself && plan.sets == A && plan.G == 1 && plan.J == 0,
                    "stairwell: a staircase of other sizes");
  }

  i64 A, passes, longest = 0;
  Stairs<real> stairs{};
  std::vector<Diagonal> diagonals;
  std::vector<i64> pass;
  std::vector<real*> levels, d_old, d_keys, d_values;
  std::vector<const real*> old, extra;
  std::vector<const bool*> kept, relu_kept;
};

}  // namespace

void staircase_forward(Arguments& from) {
  const PlanArguments given(from);
  const std::vector<i64> stairs = from.integers();
  const Tensors levels = from.tensors();
  const i64 instruction_set = from.integer();
  const bool poison = from.integer();
  from.end();
  by_type(given.inputs, [&](auto type) {
    Call<decltype(type)> call(given);
    StairsCall<decltype(type)> climb(call, stairs);
    call.read(climb.lengths(call.plan), given);
    climb.read(call, levels);
    climb.run(call, true, instruction_set, poison);
  });
}

void staircase_backward(Arguments& from) {
  const PlanArguments given(from);
  const std::vector<i64> stairs = from.integers();
  const Tensors levels = from.tensors();
  const Tensor y = from.tensor();
  const Tensors gradients = from.tensors(), stairs_gradients = from.tensors();
  const i64 begin = from.integer(), end = from.integer(), first = from.integer(), last = from.integer();
  const i64 instruction_set = from.integer();
  const bool poison = from.integer();
  from.end();
  by_type(given.inputs, [&](auto type) {
    Call<decltype(type)> call(given);
    StairsCall<decltype(type)> climb(call, stairs);
    call.read(climb.lengths(call.plan), given);
    climb.read(call, levels);
    call.read_gradients({y}, gradients, begin, end, end - begin, 0);
    climb.read_gradients(call.plan, stairs_gradients, first, last);
    climb.run(call, false, instruction_set, poison);
  });
}

}  // namespace stairwell
