// What every operator needs: reads a plan from lists of tensors in the order of segment.py (an empty tensor stands for
// none), packs the weights once a call, and sends tiles of rows through the segment, one a thread.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "plan.h"

namespace stairwell {
namespace {

using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

constexpr i64 MOST_ROWS = 24;  // of a tile: more would push its keys and values out of the cache
constexpr std::align_val_t LINE{64};

enum InstructionSet : i64 { GENERIC = 0, AVX2 = 1, AVX512 = 2 };

template <class real>
const Kernels<real>& kernels(i64 set) {
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

// Takes pointers from a list of tensors, in order.
class Reader {
 public:
  explicit Reader(const Tensors& tensors) : tensors_(tensors) {}

  template <class type>
  type* next() {
    STD_TORCH_CHECK(at_ < tensors_.size(), "stairwell: too few tensors");
    const Tensor& tensor = tensors_[at_++];
    if (tensor.numel() == 0) return nullptr;
    STD_TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous() && tensor.element_size() == sizeof(type),
                    "stairwell: tensors must be contiguous, on the CPU and of one type");
    return static_cast<type*>(tensor.data_ptr());
  }

 private:
  const Tensors& tensors_;
  size_t at_ = 0;
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

// Everything that a call's plan points to.
template <class real>
class Call {
 public:
  Call(const std::vector<i64>& sizes, double eps, double attention_rate, double relu_rate, double residual_rate,
       const Tensors& inputs, const Tensors& masks, const Tensors& trace) {
    read_sizes(sizes);
    plan.eps = static_cast<real>(eps);
    plan.attention_factor = static_cast<real>(1 / (1 - attention_rate));
    plan.relu_factor = static_cast<real>(1 / (1 - relu_rate));
    plan.residual_factor = static_cast<real>(1 / (1 - residual_rate));
    read_inputs(inputs);
    read_masks(masks);
    read_trace(trace);
    plan.layers = layers.data();
    plan.set = sets.data();
    plan.levels = levels.data();
  }

  void read_gradients(const Tensor& y, const Tensor& memory, const Tensors& gradients, i64 begin, i64 end) {
    STD_TORCH_CHECK(0 <= begin && begin < end && end <= plan.T, "stairwell: no such steps");
    plan.begin = begin;
    plan.end = end;
    plan.d_y = static_cast<const real*>(y.data_ptr());
    plan.d_memory_given = static_cast<const real*>(memory.data_ptr());
    Reader next(gradients);
    plan.d_x = next.template next<real>();
    plan.d_memory = next.template next<real>();
    for (auto& set : sets) set.d_old = next.template next<real>();
    for (auto& set : sets) set.d_new = next.template next<real>();
    for (auto& layer : layers)
      for (real** to : {&layer.attention.d_out, &layer.attention.d_normed, &layer.self.d_query, &layer.self.d_scores,
                        &layer.self.d_read, &layer.d_own, &layer.cross.d_out, &layer.cross.d_normed,
                        &layer.source.d_query, &layer.source.d_scores, &layer.source.d_read, &layer.feed.d_out,
                        &layer.feed.d_normed, &layer.d_inner})
        *to = next.template next<real>();
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
    const i64 threads = torch::stable::get_num_threads();
    const i64 tiles = std::min(plan.B, threads * ((plan.B + threads * most_rows - 1) / (threads * most_rows)));
    // Each thread takes the next tile when it is done with one: a slow core does not hold up the others.
    std::atomic<i64> next{0};
    torch::stable::parallel_for(0, std::min(threads, tiles), 1, [&](i64, i64) {
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
    size_t at = 0;
    for (i64* to : {&plan.B, &plan.T, &plan.D, &plan.H, &plan.K, &plan.F, &plan.R, &plan.G, &plan.A, &plan.J,
                    &plan.sets, &plan.steps, &kept_width})
      *to = sizes[at++];
    plan.pre = sizes[at++];
    plan.itself = sizes[at++];
    plan.keep = sizes[at++];
    layers.resize(plan.A);
    sets.resize(plan.sets);
    levels.resize(plan.A + 1);
    for (auto& layer : layers) layer.reach = sizes[at++];
    for (auto& layer : layers) layer.set = sizes[at++];
    for (auto& set : sets) set.memory = sizes[at++];
    for (auto& layer : layers) layer.width = layer.reach + plan.itself;
  }

  void read_inputs(const Tensors& inputs) {
    Reader next(inputs);
    const auto weight = [&] { return next.template next<const real>(); };
    plan.x = weight();
    plan.mix = weight();
    position = weight();
    for (auto& set : sets) {
      set.old = weight();
      const real* project = weight();
      raw(set.project, project, weight(), plan.D, 2 * plan.H * plan.K);
    }
    for (auto& layer : layers) read_layer(layer, weight);
  }

  template <class Next>
  void read_layer(Layer<real>& layer, Next weight) {
    const i64 D = plan.D, HK = plan.H * plan.K;
    const real* query = weight();
    raw(layer.self.query, query, weight(), D, HK);
    raw(layer.self.out, weight(), nullptr, HK, D);
    const real* inner = weight();
    raw(layer.inner, inner, weight(), D, plan.F);
    const real* outer = weight();
    raw(layer.outer, outer, weight(), plan.F, D);
    layer.ramp = weight();
    const real* cross_query = weight();
    raw(layer.source.query, cross_query, weight(), D, HK);
    raw(layer.source.out, weight(), nullptr, HK, D);
    layer.source_keys = weight();
    layer.source_values = weight();
    for (auto* sublayer : {&layer.attention, &layer.cross, &layer.feed}) {
      sublayer->scale = weight();
      sublayer->shift = weight();
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
    Reader next(masks);
    plan.age = next.template next<const i64>();
    plan.source_mask = next.template next<const bool>();
    for (auto& layer : layers) {
      layer.self.kept = next.template next<const bool>();
      layer.self.kept_width = kept_width;
      layer.relu_kept = next.template next<const bool>();
      layer.source.kept = next.template next<const bool>();
      layer.source.kept_width = plan.J;
      // One mask for the sublayers that there are, in their order.
      if (const bool* kept = next.template next<const bool>()) {
        const i64 size = plan.B * plan.T * plan.D;
        layer.attention.kept = kept;
        layer.cross.kept = kept + size;
        layer.feed.kept = kept + (plan.J ? 2 : 1) * size;
      }
    }
  }

  void read_trace(const Tensors& trace) {
    Reader next(trace);
    const auto tensor = [&] { return next.template next<real>(); };
    plan.y = tensor();
    plan.memory = tensor();
    for (i64 level = 1; level < plan.A; ++level) levels[level] = tensor();
    plan.memory_input = tensor();
    plan.memory_rstd = tensor();
    for (auto& set : sets) set.keys = tensor();
    for (auto& set : sets) set.values = tensor();
    for (auto& layer : layers) {
      Sublayer<real>&attention = layer.attention, &cross = layer.cross, &feed = layer.feed;
      Attended<real>&self = layer.self, &source = layer.source;
      for (real** to : {&attention.input, &attention.normed, &attention.rstd, &self.q, &self.weights, &self.used,
                        &self.read, &layer.own, &cross.input, &cross.normed, &cross.rstd, &source.q,
                        &source.weights, &source.used, &source.read, &feed.input, &feed.normed, &feed.rstd,
                        &layer.active})
        *to = tensor();
    }
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
      torch::stable::parallel_for(0, panels, std::max<i64>(1, 65536 / (panel * job.depth)), [&](i64 first, i64 last) {
        for (i64 j = first; j < last; ++j)
          pack_panel(job, room + job.offset + j * panel * job.depth, panel, j * panel);
      });
    }
  }

  std::vector<real*> levels;
  std::vector<Raw> maps;
  const real* position = nullptr;
  i64 kept_width = 0;
};

template <class Do>
void by_type(const Tensor& like, Do run) {
  if (like.scalar_type() == torch::headeronly::ScalarType::Float) return run(float());
  STD_TORCH_CHECK(like.scalar_type() == torch::headeronly::ScalarType::Double, "stairwell: float32 or float64 only");
  run(double());
}

}  // namespace
}  // namespace stairwell
