// What every operator needs: reads a plan from lists of tensors in the order of segment.py (an empty tensor stands for
// none), packs the weights once a call, and sends tiles of rows through the segment, one a thread.
// The loops trust the plan, so everything is checked here: sizes, element types, numbers of elements, ages.
#pragma once

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <limits>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "instruction_sets.h"
#include "interface.h"
#include "plan.h"
#include "step.h"

namespace stairwell {
namespace {

constexpr i64 MOST_ROWS = 24;  // of a tile: more would push its keys and values out of the cache
constexpr std::align_val_t LINE{64};

template <class real>
const Kernels<real>& kernels(i64 set) {
  STAIRWELL_CHECK(GENERIC <= set && set <= best_instruction_set(), "stairwell: no instruction set ", set,
                  " on this machine");
#if defined(__x86_64__)
  if (set == AVX512) return kernels_avx512<real>();
  if (set == AVX2) return kernels_avx2<real>();
#endif
  return kernels_generic<real>();
}

// Scratch memory; filled with NaN on request, so that tests find whoever reads what nobody wrote.
template <class real>
class Scratch {
 public:
  Scratch(i64 size, bool poison) : data_(static_cast<real*>(operator new(size * sizeof(real), LINE))) {
    if (poison)
      for (i64 i = 0; i < size; ++i) data_[i] = std::numeric_limits<real>::quiet_NaN();
  }
  ~Scratch() { operator delete(data_, LINE); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  real* data() const { return data_; }

 private:
  real* data_;
};

// How many elements a tensor of this shape has. Sizes come from outside, so their product may overflow.
inline i64 elements(std::initializer_list<i64> shape) {
  i64 n = 1;
  for (i64 size : shape)
    STAIRWELL_CHECK(size >= 0 && !__builtin_mul_overflow(n, size, &n), "stairwell: a size is negative or too large");
  return n;
}

template <class type>
constexpr ElementType element_type() {
  if (std::is_same_v<type, float>) return ElementType::FLOAT32;
  if (std::is_same_v<type, double>) return ElementType::FLOAT64;
  return std::is_same_v<type, bool> ? ElementType::BOOL : ElementType::INT64;
}

inline bool has_type(const Tensor& tensor, ElementType type) { return tensor.type == static_cast<i64>(type); }

// The elements of a tensor; null if it has none.
template <class type>
type* elements_of(const Tensor& tensor) {
  if (tensor.numel() == 0) return nullptr;
  STAIRWELL_CHECK(tensor.dense && has_type(tensor, element_type<std::remove_const_t<type>>()),
                  "stairwell: tensors must be contiguous, on the CPU and of one type");
  return static_cast<type*>(tensor.data);
}

// Takes pointers from a list of tensors, in order; each must have as many elements as the loops will touch.
class Reader {
 public:
  Reader(const Tensors& tensors, const char* name) : tensors_(tensors), name_(name) {}

  template <class type>
  type* next(std::initializer_list<i64> shape) {
    const i64 wanted = elements(shape);
    const Tensor& tensor = take();
    require(tensor.numel() == wanted, tensor, wanted);
    return elements_of<type>(tensor);
  }

  // The same for a tensor that may be empty, or must be unless `there`.
  template <class type>
  type* optional(std::initializer_list<i64> shape) {
    return next_if<type>(peek() > 0, shape);
  }
  template <class type>
  type* next_if(bool there, std::initializer_list<i64> shape) {
    return there ? next<type>(shape) : next<type>({0});
  }

  // The same for a tensor that may be longer.
  template <class type>
  type* at_least(std::initializer_list<i64> shape) {
    const i64 wanted = elements(shape);
    const Tensor& tensor = take();
    require(tensor.numel() >= wanted, tensor, wanted);
    return elements_of<type>(tensor);
  }

  // The same for parameters that may be stored in fewer bits.
  const void* stored(Storage storage, std::initializer_list<i64> shape, ElementType type) {
    const i64 wanted = elements(shape);
    const Tensor& tensor = take();
    require(tensor.numel() == wanted, tensor, wanted);
    if (storage != Storage::SAME) type = storage == Storage::INT8 ? ElementType::INT8 : ElementType::BFLOAT16;
    STAIRWELL_CHECK(!wanted || (tensor.dense && has_type(tensor, type)),
                    "stairwell: parameters must be contiguous, on the CPU and of the type of their storage");
    return wanted ? tensor.data : nullptr;
  }

  void end() const { STAIRWELL_CHECK(at_ == tensors_.size(), "stairwell: too many tensors in ", name_); }

 private:
  i64 peek() const {
    STAIRWELL_CHECK(at_ < tensors_.size(), "stairwell: too few tensors in ", name_);
    return tensors_[at_].numel();
  }
  const Tensor& take() {
    peek();
    return tensors_[at_++];
  }
  void require(bool right, const Tensor& tensor, i64 wanted) const {
    STAIRWELL_CHECK(right, "stairwell: tensor ", at_ - 1, " of ", name_, " has ", tensor.numel(), " elements, not ",
                    wanted);
  }

  const Tensors& tensors_;
  const char* name_;
  size_t at_ = 0;
};

// How long the tensors of a call are along time. Those of a Staircase differ from Feedback's.
struct Lengths {
  i64 call;          // tokens that are read: of x, y, ages and masks
  i64 trace;         // steps of what layers keep
  i64 levels;        // steps of what is between layers
  i64 memory;        // tokens that are remembered
  i64 memory_trace;  // steps of what is kept of them
  i64 keys;          // places of keys and values
  i64 old;           // places of those from before the call
};

// A weight (rows, columns) to be packed as B (depth, width) of a product: as it is, or transposed.
template <class real>
struct Job {
  const real* from;
  i64 depth, width, depth_stride, width_stride;
  Packed<real>* to;
  i64 offset = 0;
};

template <class real>
void pack_panel(const Job<real>& job, real* to, i64 panel, i64 first) {
  const i64 columns = std::min(panel, job.width - first);
  for (i64 k = 0; k < job.depth; ++k, to += panel) {
    const real* from = job.from + k * job.depth_stride + first * job.width_stride;
    for (i64 j = 0; j < columns; ++j) to[j] = from[j * job.width_stride];
    for (i64 j = columns; j < panel; ++j) to[j] = 0;
  }
}

// The arguments with which every operator on a plan begins.
struct PlanArguments {
  explicit PlanArguments(Arguments& from)
      : sizes(from.integers()),
        eps(from.real()),
        attention_rate(from.real()),
        relu_rate(from.real()),
        residual_rate(from.real()),
        inputs(from.tensors()),
        masks(from.tensors()),
        trace(from.tensors()) {}

  std::vector<i64> sizes;
  double eps, attention_rate, relu_rate, residual_rate;
  Tensors inputs, masks, trace;
};

// Everything that a call's plan points to.
template <class real>
class Call {
 public:
  explicit Call(const PlanArguments& given) {
    read_sizes(given.sizes);
    plan.eps = static_cast<real>(given.eps);
    plan.attention_factor = static_cast<real>(1 / (1 - given.attention_rate));
    plan.relu_factor = static_cast<real>(1 / (1 - given.relu_rate));
    plan.residual_factor = static_cast<real>(1 / (1 - given.residual_rate));
  }

  // Of a segment of Feedback.
  Lengths feedback_lengths() const {
    const i64 steps = plan.keep ? plan.T : 1;
    STAIRWELL_CHECK(plan.steps == steps && plan.R > 0, "stairwell: a segment of other sizes");
    return {plan.T, steps, steps, plan.T, steps, plan.T + plan.R, plan.R};
  }

  void read(const Lengths& lengths, const PlanArguments& given) {
    length = lengths;
    read_inputs(given.inputs);
    read_masks(given.masks);
    read_trace(given.trace);
    plan.layers = layers.data();
    plan.set = sets.data();
    plan.levels = levels.data();
  }

  // given: the gradients of y and, in Feedback, of the memory. Those of layers are kept for the steps of a block, those of
  // scores and of what was read for so many steps.
  void read_gradients(const Tensors& given, const Tensors& gradients, i64 begin, i64 end, i64 scores, i64 read) {
    const i64 B = plan.B, D = plan.D, H = plan.H, HK = H * plan.K, J = plan.J, N = end - begin;
    STAIRWELL_CHECK(0 <= begin && begin < end && end <= plan.T && plan.keep, "stairwell: no such steps");
    plan.begin = begin;
    plan.end = end;
    Reader come(given, "the incoming gradients");
    plan.d_y = come.next<const real>({length.call, B, D});
    if (length.memory) plan.d_memory_given = come.next<const real>({plan.G, length.memory, B, D});
    come.end();
    Reader next(gradients, "gradients");
    plan.d_x = next.next<real>({length.call, B, D});
    plan.d_memory = next.next<real>({plan.G, length.memory, B, D});
    for (auto& set : sets) set.d_old = next.next<real>({B, length.old, 2 * HK});
    for (auto& set : sets) set.d_new = next.next<real>({length.memory ? length.memory : length.memory_trace, B, 2 * HK});
    for (auto& layer : layers) {
      const auto block = [&](bool there, i64 width) {
        return there ? next.at_least<real>({N, B, width}) : next.next<real>({0});
      };
      layer.attention.d_out = block(true, D);
      layer.attention.d_normed = block(!plan.pre, D);
      layer.self.d_query = block(true, HK);
      layer.self.d_scores = next.at_least<real>({scores, B, H, layer.width});
      layer.self.d_read = next.at_least<real>({read, B, HK});
      layer.d_own = block(plan.itself, 2 * HK);
      layer.cross.d_out = block(crossed, D);
      layer.cross.d_normed = block(crossed && !plan.pre, D);
      layer.source.d_query = block(crossed, HK);
      layer.source.d_scores = crossed ? next.at_least<real>({N, B, H, J}) : next.next<real>({0});
      layer.source.d_read = block(crossed, HK);
      layer.feed.d_out = block(true, D);
      layer.feed.d_normed = block(!plan.pre, D);
      layer.d_inner = block(true, plan.F);
    }
    next.end();
  }

  void run(bool forward, i64 instruction_set, bool poison) {
    const Kernels<real>& use = kernels<real>(instruction_set);
    run(forward, use, use.workspace, forward ? use.forward : use.backward, MOST_ROWS, poison);
  }

  // The same with other loops.
  template <class Workspace, class Walk>
  void run(bool forward, const Kernels<real>& use, Workspace workspace, Walk walk, i64 most_rows, bool poison) {
    i64 size = 0;
    const std::vector<Job<real>> jobs = packing(forward, use.panel, size);
    Scratch<real> packed(size, poison);
    pack(jobs, use.panel, packed.data());
    const i64 threads = get_num_threads();
    const i64 tiles = std::min(plan.B, threads * ((plan.B + threads * most_rows - 1) / (threads * most_rows)));
    // Each thread takes the next tile when it is done with one: a slow core does not hold up the others.
    std::atomic<i64> next{0};
    parallel_for(0, std::min(threads, tiles), 1, [&](i64, i64) {
      Scratch<real> work(workspace(plan, (plan.B + tiles - 1) / tiles), poison);
      for (i64 tile = next++; tile < tiles; tile = next++)
        walk(plan, plan.B * tile / tiles, plan.B * (tile + 1) / tiles, work.data());
    });
  }

  Plan<real> plan{};
  std::vector<Layer<real>> layers;
  std::vector<Set<real>> sets;

 private:
  void read_sizes(const std::vector<i64>& sizes) {
    constexpr size_t FIXED = 16;
    constexpr i64 MOST = i64{1} << 40;
    STAIRWELL_CHECK(sizes.size() > FIXED, "stairwell: too few sizes");
    for (i64 size : sizes) STAIRWELL_CHECK(0 <= size && size < MOST, "stairwell: a size is negative or too large");
    size_t at = 0;
    for (i64* to : {&plan.B, &plan.T, &plan.D, &plan.H, &plan.K, &plan.F, &plan.R, &plan.G, &plan.A, &plan.J,
                    &plan.sets, &plan.steps, &kept_width})
      *to = sizes[at++];
    for (i64 size : {plan.B, plan.T, plan.D, plan.H, plan.K, plan.F, plan.G, plan.A, plan.sets})
      STAIRWELL_CHECK(size > 0, "stairwell: a size is 0");
    plan.pre = sizes[at++];
    plan.itself = sizes[at++];
    plan.keep = sizes[at++];
    const i64 many = static_cast<i64>(sizes.size() - FIXED);
    STAIRWELL_CHECK(plan.A <= many && plan.sets <= many && 2 * plan.A + plan.sets == many,
                    "stairwell: a plan of another number of layers");
    layers.resize(plan.A);
    sets.resize(plan.sets);
    levels.resize(plan.A + 1);
    for (auto& layer : layers) layer.reach = sizes[at++];
    for (auto& layer : layers) layer.set = sizes[at++];
    for (auto& set : sets) set.memory = sizes[at++];
    for (auto& layer : layers) {
      layer.width = layer.reach + plan.itself;
      STAIRWELL_CHECK(layer.reach <= plan.R && layer.set < plan.sets, "stairwell: a layer reads what is not there");
    }
    for (auto& set : sets) STAIRWELL_CHECK(set.memory < plan.G, "stairwell: there is no such memory");
  }

  void read_inputs(const Tensors& inputs) {
    const i64 B = plan.B, D = plan.D, HK = plan.H * plan.K;
    Reader next(inputs, "inputs");
    plan.x = next.next<const real>({length.call, B, D});
    plan.mix = next.next<const real>({length.memory ? plan.G : 0, plan.A + 1});
    position = next.next<const real>({plan.R + plan.itself, plan.K});
    for (auto& set : sets) {
      set.old = next.next<const real>({B, length.old, 2 * HK});
      const real* project = next.next<const real>({2 * HK, D});
      raw(set.project, project, next.optional<const real>({2 * HK}), D, 2 * HK);
    }
    for (auto& layer : layers) read_layer(layer, next);
    next.end();
  }

  void read_layer(Layer<real>& layer, Reader& next) {
    const i64 D = plan.D, HK = plan.H * plan.K, F = plan.F;
    const real* query = next.next<const real>({HK, D});
    raw(layer.self.query, query, next.optional<const real>({HK}), D, HK);
    raw(layer.self.out, next.next<const real>({D, HK}), nullptr, HK, D);
    const real* inner = next.next<const real>({F, D});
    raw(layer.inner, inner, next.optional<const real>({F}), D, F);
    const real* outer = next.next<const real>({D, F});
    raw(layer.outer, outer, next.optional<const real>({D}), F, D);
    layer.ramp = next.optional<const real>({plan.H, layer.width});
    const real* cross_query = next.optional<const real>({HK, D});
    if (&layer == &layers[0]) crossed = cross_query;
    STAIRWELL_CHECK(crossed == (cross_query != nullptr), "stairwell: all layers attend to a source, or none");
    raw(layer.source.query, cross_query, next.optional<const real>({HK}), D, HK);
    raw(layer.source.out, next.next_if<const real>(crossed, {D, HK}), nullptr, HK, D);
    layer.source_keys = next.next_if<const real>(crossed, {plan.B, plan.H, plan.J, plan.K});
    layer.source_values = next.next_if<const real>(crossed, {plan.B, plan.H, plan.J, plan.K});
    for (auto* sublayer : {&layer.attention, &layer.cross, &layer.feed}) {
      const bool there = !plan.pre && (crossed || sublayer != &layer.cross);
      sublayer->scale = next.next_if<const real>(there, {D});
      sublayer->shift = next.next_if<const real>(there, {D});
    }
  }

  struct Raw {
    Linear<real>* map;
    const real* weight;
    i64 in, out;
  };

  void raw(Linear<real>& map, const real* weight, const real* bias, i64 in, i64 out) {
    map.bias = bias;
    if (weight) maps.push_back({&map, weight, in, out});
  }

  void read_masks(const Tensors& masks) {
    const i64 B = plan.B, T = length.call, H = plan.H;
    Reader next(masks, "masks");
    plan.age = next.next<const i64>({B, T});
    // Ages are indices: one below 0 would lead out of the keys.
    for (i64 i = 0; i < B * T; ++i) STAIRWELL_CHECK(plan.age[i] >= 0, "stairwell: an age is negative: ", plan.age[i]);
    plan.source_mask = next.next_if<const bool>(crossed, {B, plan.J});
    for (auto& layer : layers) {
      layer.self.kept = next.optional<const bool>({B, H, T, kept_width});
      layer.self.kept_width = kept_width;
      STAIRWELL_CHECK(!layer.self.kept || kept_width >= layer.width, "stairwell: a mask has too few distances");
      layer.relu_kept = next.optional<const bool>({B, T, plan.F});
      layer.source.kept = next.optional<const bool>({B, H, T, plan.J});
      layer.source.kept_width = plan.J;
      // One mask for the sublayers that there are, in their order.
      if (const bool* kept = next.optional<const bool>({crossed ? 3 : 2, B, T, plan.D})) {
        const i64 size = B * T * plan.D;
        layer.attention.kept = kept;
        layer.cross.kept = kept + size;
        layer.feed.kept = kept + (crossed ? 2 : 1) * size;
      }
    }
    next.end();
  }

  void read_trace(const Tensors& trace) {
    const i64 B = plan.B, D = plan.D, H = plan.H, HK = H * plan.K, steps = length.trace;
    Reader next(trace, "trace");
    plan.y = next.next<real>({length.call, B, D});
    plan.memory = next.next<real>({plan.G, length.memory, B, D});
    for (i64 level = 1; level < plan.A; ++level) levels[level] = next.next<real>({length.levels, B, D});
    plan.memory_input = next.next<real>({plan.G, length.memory_trace, B, D});
    plan.memory_rstd = next.next<real>({plan.G, length.memory_trace, B});
    for (auto& set : sets) set.keys = next.next<real>({B, H, length.keys, plan.K});
    for (auto& set : sets) set.values = next.next<real>({B, H, length.keys, plan.K});
    const auto sublayer = [&](Sublayer<real>& to, bool there) {
      to.input = next.next_if<real>(there, {steps, B, D});
      to.normed = next.next_if<real>(there && !plan.pre, {steps, B, D});
      to.rstd = next.next_if<real>(there, {steps, B});
    };
    const auto attended = [&](Attended<real>& to, bool there, i64 width) {
      to.q = next.next_if<real>(there, {steps, B, HK});
      to.weights = next.next_if<real>(there, {steps, B, H, width});
      to.used = next.next_if<real>(there && to.kept, {steps, B, H, width});
      to.read = next.next_if<real>(there, {steps, B, HK});
    };
    for (auto& layer : layers) {
      sublayer(layer.attention, true);
      attended(layer.self, true, layer.width);
      layer.own = next.next_if<real>(plan.itself, {steps, B, 2 * HK});
      sublayer(layer.cross, crossed);
      attended(layer.source, crossed, plan.J);
      sublayer(layer.feed, true);
      layer.active = next.next<real>({steps, B, plan.F});
    }
    next.end();
  }

  // What has to be packed for one direction, and how much room it takes.
  std::vector<Job<real>> packing(bool forward, i64 panel, i64& size) {
    const i64 W = plan.R + plan.itself, K = plan.K;
    std::vector<Job<real>> jobs;
    for (const Raw& map : maps)
      jobs.push_back(forward ? Job<real>{map.weight, map.in, map.out, 1, map.in, &map.map->forth}
                             : Job<real>{map.weight, map.out, map.in, map.in, 1, &map.map->back});
    jobs.push_back(forward ? Job<real>{position, K, W, 1, K, &plan.position_forth}
                           : Job<real>{position, W, K, K, 1, &plan.position_back});
    for (auto& job : jobs) {
      job.offset = size;
      size += (job.width + panel - 1) / panel * panel * job.depth;
    }
    return jobs;
  }

  void pack(const std::vector<Job<real>>& jobs, i64 panel, real* room) {
    for (const auto& job : jobs) {
      *job.to = {room + job.offset, job.depth};
      const i64 panels = (job.width + panel - 1) / panel;
      parallel_for(0, panels, std::max<i64>(1, 65536 / (panel * job.depth)), [&](i64 first, i64 last) {
        for (i64 j = first; j < last; ++j)
          pack_panel(job, room + job.offset + j * panel * job.depth, panel, j * panel);
      });
    }
  }

  std::vector<real*> levels;
  std::vector<Raw> maps;
  const real* position = nullptr;
  i64 kept_width = 0;
  Lengths length{};
  bool crossed = false;  // layers attend to a source
};

template <class Do>
void by_type(const Tensors& tensors, Do run) {
  STAIRWELL_CHECK(!tensors.empty(), "stairwell: no tensors");
  const Tensor& like = tensors[0];
  if (has_type(like, ElementType::FLOAT32)) return run(float());
  STAIRWELL_CHECK(has_type(like, ElementType::FLOAT64), "stairwell: float32 or float64 only");
  run(double());
}

}  // namespace
}  // namespace stairwell
