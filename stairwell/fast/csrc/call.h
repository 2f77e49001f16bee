// Common code of the operators: read a plan from lists of tensors in the order of segment_data.py (an empty tensor
// stands for None), pack the parameters once per call, and run the kernels on tiles of the batch. Kernels check nothing,
// so everything is validated here: sizes, element types, element counts, indices.
#pragma once

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <limits>
#include <memory>
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

constexpr i64 MAX_TILE_BATCH = 24;  // streams per tile: with more, keys and values no longer fit into the cache
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

// Scratch memory. Tests fill it with NaN to detect reads of uninitialized elements.
template <class real>
class Scratch {
 public:
  Scratch(i64 size, bool fill_nan) : data_(static_cast<real*>(operator new(size * sizeof(real), LINE))) {
    if (fill_nan)
      for (i64 i = 0; i < size; ++i) data_[i] = std::numeric_limits<real>::quiet_NaN();
  }
  ~Scratch() { operator delete(data_, LINE); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  real* data() const { return data_; }

 private:
  real* data_;
};

// Number of elements of a shape. Sizes come from the caller, so the product may overflow.
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

// Pointer to the elements of a tensor; null if it is empty.
template <class type>
type* elements_of(const Tensor& tensor) {
  if (tensor.numel() == 0) return nullptr;
  STAIRWELL_CHECK(tensor.dense && has_type(tensor, element_type<std::remove_const_t<type>>()),
                  "stairwell: tensors must be contiguous, on the CPU and of one type");
  return static_cast<type*>(tensor.data);
}

// Take pointers from a list of tensors in order. Each tensor must have the number of elements that the kernels access.
class PointerList {
 public:
  PointerList(const Tensors& tensors, const char* name) : tensors_(tensors), name_(name) {}

  template <class type>
  type* next(std::initializer_list<i64> shape) {
    const i64 expected = elements(shape);
    const Tensor& tensor = take();
    require(tensor.numel() == expected, tensor, expected);
    return elements_of<type>(tensor);
  }

  // The same for an optional tensor: it may be empty, or must be empty unless `present`.
  template <class type>
  type* optional(std::initializer_list<i64> shape) {
    return next_if<type>(peek() > 0, shape);
  }
  template <class type>
  type* next_if(bool present, std::initializer_list<i64> shape) {
    return present ? next<type>(shape) : next<type>({0});
  }

  // The same for a tensor that may be longer.
  template <class type>
  type* at_least(std::initializer_list<i64> shape) {
    const i64 expected = elements(shape);
    const Tensor& tensor = take();
    require(tensor.numel() >= expected, tensor, expected);
    return elements_of<type>(tensor);
  }

  // The same for a tensor of any length, which may be empty.
  template <class type>
  type* any(i64& size) {
    const Tensor& tensor = take();
    size = tensor.numel();
    return elements_of<type>(tensor);
  }

  // The same for parameters with reduced precision.
  void* stored(Storage storage, std::initializer_list<i64> shape, ElementType type) {
    const i64 expected = elements(shape);
    const Tensor& tensor = take();
    require(tensor.numel() == expected, tensor, expected);
    if (storage != Storage::SAME) type = storage == Storage::INT8 ? ElementType::INT8 : ElementType::BFLOAT16;
    STAIRWELL_CHECK(!expected || (tensor.dense && has_type(tensor, type)),
                    "stairwell: parameters must be contiguous, on the CPU and of their declared storage type");
    return expected ? tensor.data : nullptr;
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
  void require(bool right, const Tensor& tensor, i64 expected) const {
    STAIRWELL_CHECK(right, "stairwell: tensor ", at_ - 1, " of ", name_, " has ", tensor.numel(), " elements, not ",
                    expected);
  }

  const Tensors& tensors_;
  const char* name_;
  size_t at_ = 0;
};

// Lengths of a call's tensors along time. They differ between Feedback and Staircase.
struct Lengths {
  i64 call;           // tokens of x, y and masks
  i64 saved;          // tokens of the layers' saved activations
  i64 layer_outputs;  // tokens of the outputs between layers
  i64 memory;         // tokens that enter the memory
  i64 memory_saved;   // tokens of the memory's saved activations
  i64 keys;           // positions of keys and values
  i64 state;          // positions of keys and values from the state
};

// A parameter matrix to be packed as B (depth, width) of a product, possibly transposed.
template <class real>
struct PackJob {
  const real* from;
  i64 depth, width, depth_stride, width_stride;
  Packed<real>* to;
  i64 offset = 0;
};

template <class real>
void pack_panel(const PackJob<real>& job, real* to, i64 panel, i64 first) {
  const i64 columns = std::min(panel, job.width - first);
  for (i64 k = 0; k < job.depth; ++k, to += panel) {
    const real* from = job.from + k * job.depth_stride + first * job.width_stride;
    for (i64 j = 0; j < columns; ++j) to[j] = from[j * job.width_stride];
    for (i64 j = columns; j < panel; ++j) to[j] = 0;
  }
}

// The first arguments of every operator on a plan.
struct PlanArguments {
  explicit PlanArguments(Arguments& from)
      : sizes(from.integers()),
        eps(from.real()),
        attention_rate(from.real()),
        relu_rate(from.real()),
        residual_rate(from.real()),
        inputs(from.tensors()),
        masks(from.tensors()),
        activations(from.tensors()) {}

  std::vector<i64> sizes;
  double eps, attention_rate, relu_rate, residual_rate;
  Tensors inputs, masks, activations;
};

// Call f(thread, threads, barrier) on concurrent threads. Return whether a barrier was slow.
template <class F>
bool on_threads(i64 threads, const F& f) {
  struct Shared {
    const F& f;
    Barrier barrier;
  } shared{f, {}};
  if (threads == 1) {
    f(0, 1, shared.barrier);
    return false;
  }
  const Task task = [](void* data, i64 thread, i64 n) {
    Shared& s = *static_cast<Shared*>(data);
    s.barrier.set_threads(n);
    s.f(thread, n, s.barrier);
  };
  run_on_threads()(task, &shared, threads);
  return shared.barrier.was_slow();
}

enum Schedule : i64 { AUTO = 0, SHARE_STREAMS = 1, SHARE_COLUMNS = 2 };  // must match native.py

// The cost model of a Feedback segment's two schedules: bytes of the caches, and cycles.
constexpr double OWN_CACHE = 1 << 19, SHARED_CACHE = 1 << 24;
constexpr double FROM_SHARED_CACHE = 0.8, FROM_MEMORY = 6, PER_ROW = 0.6;  // per line of 64 bytes
constexpr double WAITS = 10, PER_WAIT = 1500;                              // WAITS: per layer

// Where another process keeps a core busy, threads that wait for each other are slow: then calls run without teams.
constexpr i64 TEAM_PAUSE = 16;
inline std::atomic<i64> paused_teams{0};
inline bool pause_teams() {
  if (paused_teams.load(std::memory_order_relaxed) <= 0) return false;
  paused_teams.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// Storage of everything that a plan points to.
template <class real>
class Call {
 public:
  explicit Call(const PlanArguments& arguments) {
    read_sizes(arguments.sizes);
    plan.eps = static_cast<real>(arguments.eps);
    plan.attention_factor = static_cast<real>(1 / (1 - arguments.attention_rate));
    plan.relu_factor = static_cast<real>(1 / (1 - arguments.relu_rate));
    plan.residual_factor = static_cast<real>(1 / (1 - arguments.residual_rate));
  }

  // Lengths of a Feedback segment.
  Lengths feedback_lengths() const {
    const i64 steps = plan.needs_gradient ? plan.T : 1;
    STAIRWELL_CHECK(plan.steps == steps && plan.R > 0, "stairwell: sizes of the segment are inconsistent");
    return {plan.T, steps, steps, plan.T, steps, plan.T + plan.R, plan.R};
  }

  void read(const Lengths& lengths, const PlanArguments& arguments) {
    length = lengths;
    read_inputs(arguments.inputs);
    read_masks(arguments.masks);
    read_activations(arguments.activations);
    plan.layers = layers.data();
    plan.groups = groups.data();
    plan.layer_outputs = layer_outputs.data();
  }

  // Keys and values of the state are read in forward only, so they are not kept for backward.
  void require_state_kv() const {
    for (const auto& group : groups)
      STAIRWELL_CHECK(group.state_kv || !length.state, "stairwell: keys and values of the state are missing");
  }

  // incoming_tensors: gradients of y and, for Feedback, of the memory. Layer gradients are stored for the tokens of a block,
  // gradients of scores and of z for the specified numbers of tokens.
  void read_gradients(const Tensors& incoming_tensors, const Tensors& gradients, i64 begin, i64 end, i64 scores, i64 z) {
    const i64 B = plan.B, D = plan.D, H = plan.H, HK = H * plan.K, J = plan.J, N = end - begin;
    STAIRWELL_CHECK(0 <= begin && begin < end && end <= plan.T && plan.needs_gradient,
                    "stairwell: the range of tokens is invalid");
    plan.begin = begin;
    plan.end = end;
    PointerList incoming(incoming_tensors, "the incoming gradients");
    plan.d_y = incoming.next<const real>({length.call, B, D});
    if (length.memory) plan.d_memory_incoming = incoming.next<const real>({plan.G, length.memory, B, D});
    incoming.end();
    PointerList next(gradients, "gradients");
    plan.d_x = next.next<real>({length.call, B, D});
    plan.d_memory = next.next<real>({plan.G, length.memory, B, D});
    for (auto& group : groups) group.d_state_kv = next.next<real>({B, length.state, 2 * HK});
    const i64 new_tokens = length.memory ? length.memory : length.memory_saved;
    for (auto& group : groups) group.d_new_kv = next.next<real>({new_tokens, B, 2 * HK});
    for (auto& layer : layers) {
      const auto block = [&](bool present, i64 width) {
        return present ? next.at_least<real>({N, B, width}) : next.next<real>({0});
      };
      layer.attention.d_out = block(true, D);
      layer.attention.d_normed = block(!plan.pre_norm, D);
      layer.self.d_query = block(true, HK);
      layer.self.d_scores = next.at_least<real>({scores, B, H, layer.width});
      layer.self.d_z = next.at_least<real>({z, B, HK});
      layer.d_current_kv = block(plan.attend_to_current, 2 * HK);
      layer.cross.d_out = block(has_source, D);
      layer.cross.d_normed = block(has_source && !plan.pre_norm, D);
      layer.source.d_query = block(has_source, HK);
      layer.source.d_scores = has_source ? next.at_least<real>({N, B, H, J}) : next.next<real>({0});
      layer.source.d_z = block(has_source, HK);
      layer.feed.d_out = block(true, D);
      layer.feed.d_normed = block(!plan.pre_norm, D);
      layer.d_inner = block(true, plan.F);
    }
    packed_buffer = next.any<real>(packed_size);
    next.end();
  }

  void run(bool forward, i64 schedule, i64 instruction_set, bool fill_nan) {
    const Kernels<real>& use = kernels<real>(instruction_set);
    STAIRWELL_CHECK(AUTO <= schedule && schedule <= SHARE_COLUMNS, "stairwell: unknown schedule ", schedule);
    const auto loop = forward ? use.forward : use.backward;
    if (schedule == SHARE_COLUMNS || (schedule == AUTO && share_columns())) return run_as_team(forward, use, loop, fill_nan);
    const auto workspace = [&](const Plan<real>& plan, i64 batch) { return use.workspace(plan, batch, 1); };
    const auto alone = [&](const Plan<real>& plan, i64 first, i64 last, real* work) { loop(plan, first, last, work, {}); };
    run(forward, use, workspace, alone, MAX_TILE_BATCH, fill_nan);
  }

  // Whether all threads run one tile together, sharing the columns of each product, instead of a few streams each. Then
  // each parameter is read once per token, not once per thread, but threads wait for each other several times per layer.
  // Both give the same results. The estimates are cycles per token.
  bool share_columns() const {
    const i64 threads = get_num_threads();
    if (threads == 1 || plan.B > MAX_TILE_BATCH || pause_teams()) return false;
    i64 parameters = 0;
    for (const UnpackedLinear& map : maps) parameters += map.in * map.out;
    // Reading is not hidden behind the products: the next parameters arrive while few are left to be multiplied.
    const double bytes = parameters * sizeof(real), lines = bytes / 64;
    const double read = bytes > SHARED_CACHE ? FROM_MEMORY : bytes > OWN_CACHE ? FROM_SHARED_CACHE : 0;
    const i64 streams = (plan.B + threads - 1) / threads;
    const double alone = lines * (read + streams * PER_ROW), together = lines / threads * (read + plan.B * PER_ROW);
    return together + plan.A * WAITS * PER_WAIT < alone;
  }

  template <class Loop>
  void run_as_team(bool forward, const Kernels<real>& use, Loop loop, bool fill_nan) {
    const std::unique_ptr<Scratch<real>> packed = pack(forward, use.panel, fill_nan);
    const i64 threads = get_num_threads();
    Scratch<real> work(use.workspace(plan, plan.B, threads), fill_nan);
    std::atomic<bool> gives_up{false};
    on_threads(threads, [&](i64 thread, i64 n, Barrier& barrier) {
      loop(plan, 0, plan.B, work.data(), n > 1 ? Team{thread, n, &barrier, &gives_up} : Team{});
    });
    if (gives_up) paused_teams = TEAM_PAUSE;
  }

  // The same with other kernels.
  template <class Workspace, class Loop>
  void run(bool forward, const Kernels<real>& use, Workspace workspace, Loop loop, i64 max_tile_batch, bool fill_nan) {
    const std::unique_ptr<Scratch<real>> packed = pack(forward, use.panel, fill_nan);
    const i64 threads = get_num_threads();
    const i64 round = threads * max_tile_batch;  // streams that all threads process at a time
    const i64 tiles = std::min(plan.B, threads * ((plan.B + round - 1) / round));
    // Threads take tiles dynamically, so a slow core does not delay the others.
    std::atomic<i64> next{0};
    parallel_for(0, std::min(threads, tiles), 1, [&](i64, i64) {
      Scratch<real> work(workspace(plan, (plan.B + tiles - 1) / tiles), fill_nan);
      for (i64 tile = next++; tile < tiles; tile = next++)
        loop(plan, plan.B * tile / tiles, plan.B * (tile + 1) / tiles, work.data());
    });
  }

  Plan<real> plan{};
  std::vector<Layer<real>> layers;
  std::vector<KVGroup<real>> groups;

 private:
  void read_sizes(const std::vector<i64>& sizes) {
    constexpr size_t FIXED = 17;
    constexpr i64 MOST = i64{1} << 40;
    STAIRWELL_CHECK(sizes.size() > FIXED, "stairwell: too few sizes");
    for (i64 size : sizes) STAIRWELL_CHECK(0 <= size && size < MOST, "stairwell: a size is negative or too large");
    size_t at = 0;
    for (i64* to : {&plan.B, &plan.T, &plan.D, &plan.H, &plan.K, &plan.F, &plan.R, &plan.G, &plan.A, &plan.J,
                    &plan.n_groups, &plan.steps, &mask_width})
      *to = sizes[at++];
    for (i64 size : {plan.B, plan.T, plan.D, plan.H, plan.K, plan.F, plan.G, plan.A, plan.n_groups})
      STAIRWELL_CHECK(size > 0, "stairwell: a size is 0");
    plan.pre_norm = sizes[at++];
    plan.attend_to_current = sizes[at++];
    plan.needs_gradient = sizes[at++];
    plan.rounds_kv = sizes[at++];
    const i64 n = static_cast<i64>(sizes.size() - FIXED);
    STAIRWELL_CHECK(plan.A <= n && plan.n_groups <= n && 2 * plan.A + plan.n_groups == n,
                    "stairwell: the number of sizes does not match the number of layers");
    layers.resize(plan.A);
    groups.resize(plan.n_groups);
    layer_outputs.resize(plan.A + 1);
    for (auto& layer : layers) layer.span = sizes[at++];
    for (auto& layer : layers) layer.kv_group = sizes[at++];
    for (auto& group : groups) group.memory = sizes[at++];
    for (auto& layer : layers) {
      layer.width = layer.span + plan.attend_to_current;
      STAIRWELL_CHECK(layer.span <= plan.R && layer.kv_group < plan.n_groups,
                      "stairwell: span or kv_group of a layer is out of range");
    }
    for (auto& group : groups) STAIRWELL_CHECK(group.memory < plan.G, "stairwell: memory index out of range");
  }

  void read_inputs(const Tensors& inputs) {
    const i64 B = plan.B, D = plan.D, HK = plan.H * plan.K;
    PointerList next(inputs, "inputs");
    plan.x = next.next<const real>({length.call, B, D});
    plan.mix = next.next<const real>({length.memory ? plan.G : 0, plan.A + 1});
    position = next.next<const real>({plan.R + plan.attend_to_current, plan.K});
    for (auto& group : groups) {
      group.state_kv = next.optional<const real>({B, length.state, 2 * HK});
      const real* project = next.next<const real>({2 * HK, D});
      add_linear(group.project, project, next.optional<const real>({2 * HK}), D, 2 * HK);
    }
    for (auto& layer : layers) read_layer(layer, next);
    next.end();
  }

  void read_layer(Layer<real>& layer, PointerList& next) {
    const i64 D = plan.D, HK = plan.H * plan.K, F = plan.F;
    const real* query = next.next<const real>({HK, D});
    add_linear(layer.self.query, query, next.optional<const real>({HK}), D, HK);
    add_linear(layer.self.out, next.next<const real>({D, HK}), nullptr, HK, D);
    const real* inner = next.next<const real>({F, D});
    add_linear(layer.inner, inner, next.optional<const real>({F}), D, F);
    const real* outer = next.next<const real>({D, F});
    add_linear(layer.outer, outer, next.optional<const real>({D}), F, D);
    layer.ramp = next.optional<const real>({plan.H, layer.width});
    const real* cross_query = next.optional<const real>({HK, D});
    if (&layer == &layers[0]) has_source = cross_query;
    STAIRWELL_CHECK(has_source == (cross_query != nullptr), "stairwell: either all layers attend to a source or none");
    add_linear(layer.source.query, cross_query, next.optional<const real>({HK}), D, HK);
    add_linear(layer.source.out, next.next_if<const real>(has_source, {D, HK}), nullptr, HK, D);
    layer.source_keys = next.next_if<const real>(has_source, {plan.B, plan.H, plan.J, plan.K});
    layer.source_values = next.next_if<const real>(has_source, {plan.B, plan.H, plan.J, plan.K});
    for (auto* sublayer : {&layer.attention, &layer.cross, &layer.feed}) {
      const bool present = !plan.pre_norm && (has_source || sublayer != &layer.cross);
      sublayer->scale = next.next_if<const real>(present, {D});
      sublayer->shift = next.next_if<const real>(present, {D});
    }
  }

  struct UnpackedLinear {
    Linear<real>* map;
    const real* weight;
    i64 in, out;
  };

  void add_linear(Linear<real>& map, const real* weight, const real* bias, i64 in, i64 out) {
    map.bias = bias;
    if (weight) maps.push_back({&map, weight, in, out});
  }

  void read_masks(const Tensors& masks) {
    const i64 B = plan.B, T = length.call, H = plan.H;
    PointerList next(masks, "masks");
    plan.since_start = next.next<const i64>({B, T});
    // Kernels use these counts as indices.
    for (i64 i = 0; i < B * T; ++i)
      STAIRWELL_CHECK(plan.since_start[i] >= 0, "stairwell: tokens since start is negative: ", plan.since_start[i]);
    plan.source_mask = next.next_if<const bool>(has_source, {B, plan.J});
    for (auto& layer : layers) {
      layer.self.mask = next.optional<const bool>({B, H, T, mask_width});
      layer.self.mask_width = mask_width;
      STAIRWELL_CHECK(!layer.self.mask || mask_width >= layer.width, "stairwell: a mask has too few distances");
      layer.relu_mask = next.optional<const bool>({B, T, plan.F});
      layer.source.mask = next.optional<const bool>({B, H, T, plan.J});
      layer.source.mask_width = plan.J;
      // One mask for all sublayers of the layer, in their order.
      if (const bool* mask = next.optional<const bool>({has_source ? 3 : 2, B, T, plan.D})) {
        const i64 size = B * T * plan.D;
        layer.attention.mask = mask;
        layer.cross.mask = mask + size;
        layer.feed.mask = mask + (has_source ? 2 : 1) * size;
      }
    }
    next.end();
  }

  void read_activations(const Tensors& activations) {
    const i64 B = plan.B, D = plan.D, H = plan.H, HK = H * plan.K, steps = length.saved;
    PointerList next(activations, "activations");
    plan.y = next.next<real>({length.call, B, D});
    plan.memory = next.next<real>({plan.G, length.memory, B, D});
    for (i64 l = 1; l < plan.A; ++l) layer_outputs[l] = next.next<real>({length.layer_outputs, B, D});
    plan.memory_input = next.next<real>({plan.G, length.memory_saved, B, D});
    plan.memory_rstd = next.next<real>({plan.G, length.memory_saved, B});
    const auto stored = [&](real*& exact, uint16_t*& rounded) {
      const std::initializer_list<i64> shape = {B, H, length.keys, plan.K};
      if (!plan.rounds_kv) exact = next.next<real>(shape);
      else rounded = static_cast<uint16_t*>(next.stored(Storage::BFLOAT16, shape, element_type<real>()));
    };
    for (auto& group : groups) stored(group.keys, group.rounded_keys);
    for (auto& group : groups) stored(group.values, group.rounded_values);
    const auto sublayer = [&](Sublayer<real>& to, bool present) {
      to.input = next.next_if<real>(present, {steps, B, D});
      to.normed = next.next_if<real>(present && !plan.pre_norm, {steps, B, D});
      to.rstd = next.next_if<real>(present, {steps, B});
    };
    const auto attended = [&](Attention<real>& to, bool present, i64 width) {
      to.q = next.next_if<real>(present, {steps, B, HK});
      to.weights = next.next_if<real>(present, {steps, B, H, width});
      to.used = next.next_if<real>(present && to.mask, {steps, B, H, width});
      to.z = next.next_if<real>(present, {steps, B, HK});
    };
    for (auto& layer : layers) {
      sublayer(layer.attention, true);
      attended(layer.self, true, layer.width);
      layer.current_kv = next.next_if<real>(plan.attend_to_current, {steps, B, 2 * HK});
      sublayer(layer.cross, has_source);
      attended(layer.source, has_source, plan.J);
      sublayer(layer.feed, true);
      layer.active = next.next<real>({steps, B, plan.F});
    }
    next.end();
  }

  // The matrices to pack for one direction, and the size of the buffer for them.
  std::vector<PackJob<real>> packing(bool forward, i64 panel, i64& size) {
    const i64 W = plan.R + plan.attend_to_current, K = plan.K;
    std::vector<PackJob<real>> jobs;
    for (const UnpackedLinear& map : maps)
      jobs.push_back(forward ? PackJob<real>{map.weight, map.in, map.out, 1, map.in, &map.map->forward}
                             : PackJob<real>{map.weight, map.out, map.in, map.in, 1, &map.map->backward});
    jobs.push_back(forward ? PackJob<real>{position, K, W, 1, K, &plan.position_forward}
                           : PackJob<real>{position, W, K, K, 1, &plan.position_backward});
    for (auto& job : jobs) {
      job.offset = size;
      size += (job.width + panel - 1) / panel * panel * job.depth;
    }
    return jobs;
  }

  // Pack all matrices. Backward runs in blocks of tokens, the last one first, which may keep the packed matrices in a
  // buffer of the caller; else return the buffer.
  std::unique_ptr<Scratch<real>> pack(bool forward, i64 panel, bool fill_nan) {
    i64 size = 0;
    const std::vector<PackJob<real>> jobs = packing(forward, panel, size);
    std::unique_ptr<Scratch<real>> own;
    if (!packed_buffer) own = std::make_unique<Scratch<real>>(size, fill_nan);
    STAIRWELL_CHECK(own || size <= packed_size, "stairwell: the buffer of packed parameters is too small");
    real* buffer = own ? own->data() : packed_buffer;
    for (const auto& job : jobs) *job.to = {buffer + job.offset, job.depth};
    if (own || plan.end == plan.T) pack(jobs, panel, buffer);
    return own;
  }

  void pack(const std::vector<PackJob<real>>& jobs, i64 panel, real* buffer) {
    for (const auto& job : jobs) {
      const i64 panels = (job.width + panel - 1) / panel;
      parallel_for(0, panels, std::max<i64>(1, 65536 / (panel * job.depth)), [&](i64 first, i64 last) {
        for (i64 j = first; j < last; ++j)
          pack_panel(job, buffer + job.offset + j * panel * job.depth, panel, j * panel);
      });
    }
  }

  std::vector<real*> layer_outputs;
  std::vector<UnpackedLinear> maps;
  const real* position = nullptr;
  i64 mask_width = 0;
  Lengths length{};
  real* packed_buffer = nullptr;  // a buffer for packed parameters, from one block of backward to the next
  i64 packed_size = 0;
  bool has_source = false;  // layers attend to a source
};

template <class Do>
void dispatch_type(const Tensors& tensors, Do run) {
  STAIRWELL_CHECK(!tensors.empty(), "stairwell: no tensors");
  const Tensor& like = tensors[0];
  if (has_type(like, ElementType::FLOAT32)) return run(float());
  STAIRWELL_CHECK(has_type(like, ElementType::FLOAT64), "stairwell: float32 or float64 only");
  run(double());
}

}  // namespace
}  // namespace stairwell
