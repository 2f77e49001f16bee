// The data of the kernels: sizes and pointers, null where an option is off. Letters and layouts as in segment_data.py.
#pragma once

#include <cstdint>

#include "step.h"

namespace stairwell {

// A matrix packed for the inner loop of a product: panels of a few columns, each panel stored row by row.
template <class real>
struct Packed {
  const real* data = nullptr;
  i64 depth = 0;  // rows of the matrix: the summed dimension
};

// A linear map y = W x + b, packed for both directions.
template <class real>
struct Linear {
  Packed<real> forward;   // x -> y
  Packed<real> backward;  // dy -> dx
  const real* bias = nullptr;
};

// Attention, cross-attention or feed-forward with its norm.
template <class real>
struct Sublayer {
  real *input = nullptr, *normed = nullptr, *rstd = nullptr;  // saved activations
  const real *scale = nullptr, *shift = nullptr;              // post-norm
  real *d_out = nullptr, *d_normed = nullptr;                 // gradients
  const bool* mask = nullptr;                                 // (B, T, D): residual dropout
};

template <class real>
struct Attention {
  Linear<real> query, out;
  // Saved activations; used: weights after dropout, z: weighted sum of the values.
  real *q = nullptr, *weights = nullptr, *used = nullptr, *z = nullptr;
  real *d_query = nullptr, *d_scores = nullptr, *d_z = nullptr;  // gradients
  const bool* mask = nullptr;                                    // (B, H, T, mask_width): dropout
  i64 mask_width = 0;
};

template <class real>
struct Layer {
  i64 span = 0, width = 0, kv_group = 0;  // width: span, plus one for the current token
  Sublayer<real> attention, cross, feed;
  Attention<real> self, source;
  const real* ramp = nullptr;                                   // (H, width): adaptive span
  const real *source_keys = nullptr, *source_values = nullptr;  // (B, H, J, K)
  Linear<real> inner, outer;
  real *current_kv = nullptr, *d_current_kv = nullptr;
  real *active = nullptr, *d_inner = nullptr;
  const bool* relu_mask = nullptr;  // (B, T, F)
};

// Keys and values that several layers share.
template <class real>
struct KVGroup {
  i64 memory = 0;
  Linear<real> project;
  const real* state_kv = nullptr;  // (B, R, 2HK): from the state; in a Staircase, of its cache
  real *keys = nullptr, *values = nullptr;
  uint16_t *rounded_keys = nullptr, *rounded_values = nullptr;  // instead, in bfloat16 if Plan::rounds_kv
  real *d_state_kv = nullptr, *d_new_kv = nullptr;
};

template <class real>
struct Plan {
  i64 B, T, D, H, K, F, R, G, A, J, n_groups, steps;
  bool pre_norm, attend_to_current, needs_gradient, rounds_kv;
  real eps, attention_factor, relu_factor, residual_factor;  // dropout's 1 / (1 - rate)
  const i64* since_start;                                    // (B, T): tokens since the stream's start
  const bool* source_mask;                                   // (B, J)
  const real* mix;                                           // (G, A + 1)
  Packed<real> position_forward, position_backward;
  const Layer<real>* layers;
  const KVGroup<real>* groups;
  const real* x;
  real* const* layer_outputs;  // 1 .. A - 1: those between layers
  real *y, *memory, *memory_input, *memory_rstd;
  const real *d_y, *d_memory_incoming;
  real *d_x, *d_memory;
  i64 begin, end;  // the tokens of this call of backward
};

// One step of a Staircase: a run of chunks, each at its own pass, that goes through the layers once.
struct StaircaseStep {
  i64 offset;  // of its first token among the tokens of all steps
  i64 tokens;
  i64 start;                        // index of its first token in the call
  i64 entering, leaving;            // tokens at their first pass (the last ones), at their last pass (the first ones)
  i64 cache_first, cache_last;      // range of visible cache positions
  i64 pass_kv_first, pass_kv_last;  // range of keys and values from before the call, at their passes

  i64 context() const { return cache_last + pass_kv_last - pass_kv_first; }  // positions before the step's own tokens
  i64 visible(i64 i) const { return context() - cache_first + i + 1; }       // slots visible to token i, with itself
};

// What a Staircase has besides a plan, whose tokens are those of all steps. Letters as in staircase_segment.py.
template <class real>
struct StaircasePlan {
  i64 T, S, O, cached_before, cached_now, slots, mask_width;
  bool caches_input;
  const StaircaseStep* steps;
  const i64* pass;                     // of each token of each step
  real* const* layer_outputs;          // A + 1: (tokens of all steps, B, D); the first is the input
  const real* const* pass_kv;          // per layer: (B, O, 2HK)
  real *const *d_pass_kv, *const *d_keys, *const *d_values;
  // Dropout masks per pass and layer: (B, H, T, mask_width) and (B, T, F); or null.
  const bool *const *attention_masks, *const *relu_masks;
  const real* const* grad_from_state;  // A + 1: (tokens of all steps, B, D), gradients through the state; or null
  real* d_next;                        // (tokens of a step, B, D): gradient of the next step's input
  i64 first_step, last_step;           // the steps of this call of backward
};

// A segment of DeltaNet, forward or, if gradients are given, backward. Letters and layouts as in cores/delta.py.
template <class real>
struct Delta {
  i64 B, T, n, H, K;
  const real *q, *k, *v, *b, *a;  // a: the decay of the gate
  const bool* start;              // (B, T)
  const real* S_before;           // (B, H, K, K)
  real *o, *S_after;              // (B, T, H, K), (B, H, K, K)
  const real *d_o, *d_S_after;
  real *d_q, *d_k, *d_v, *d_b, *d_log_a, *d_S_before;
};

// The threads that run one tile.
struct Team {
  i64 thread = 0, threads = 1;
  Barrier* barrier = nullptr;
  std::atomic<bool>* gives_up = nullptr;

  void wait() const {
    if (barrier) barrier->wait();
  }

  // Return whether this thread continues. If threads wait too long, because another process keeps a core busy, the first
  // one continues alone.
  bool continues() {
    if (!barrier) return true;
    if (thread == 0 && barrier->is_wasteful()) gives_up->store(true, std::memory_order_relaxed);
    barrier->wait();
    if (!gives_up->load(std::memory_order_relaxed)) return true;
    if (thread != 0) return false;
    *this = {};
    return true;
  }
};

// The kernels of one instruction set. `work` has `workspace` elements for a tile of `batch` streams.
template <class real>
struct Kernels {
  i64 panel;  // columns of a packed panel
  i64 (*workspace)(const Plan<real>&, i64 batch, i64 threads);
  void (*forward)(const Plan<real>&, i64 first, i64 last, real* work, const Team&);
  void (*backward)(const Plan<real>&, i64 first, i64 last, real* work, const Team&);
  i64 (*staircase_workspace)(const Plan<real>&, const StaircasePlan<real>&, i64 batch);
  void (*staircase_forward)(const Plan<real>&, const StaircasePlan<real>&, i64 first, i64 last, real* work);
  void (*staircase_backward)(const Plan<real>&, const StaircasePlan<real>&, i64 first, i64 last, real* work);
  real (*logsumexp)(const real* x, i64 n);
  void (*topk)(const real* x, i64 n, i64 k, real* scores, i64* tokens);
  i64 (*delta_workspace)(const Delta<real>&);
  void (*delta)(const Delta<real>&, i64 first, i64 last, real* work);  // a range of B * H heads
  i64 (*decode_scratch)(const Step<real>& step, i64 B, i64 positions);
  void (*decode)(const Step<real>&, const StepCall<real>&, Barrier&, i64 thread, i64 threads, real* scratch);
};

template <class real> const Kernels<real>& kernels_generic();
template <class real> const Kernels<real>& kernels_avx2();
template <class real> const Kernels<real>& kernels_avx512();

}  // namespace stairwell
