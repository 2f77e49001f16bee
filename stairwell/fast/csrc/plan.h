// What the two loops of a Feedback segment work on: sizes and plain pointers. Letters and layouts as in segment.py.
#pragma once

#include <cstdint>

#include "step.h"

namespace stairwell {


// A matrix laid out for the product's inner loop: panels of a few columns, each panel row by row.
template <class real>
struct Packed {
  const real* data = nullptr;
  i64 depth = 0;  // rows of the matrix: the summed dimension
};

// A linear map y = W x + b, ready for both directions.
template <class real>
struct Linear {
  Packed<real> forth;  // x -> y
  Packed<real> back;   // dy -> dx
  const real* bias = nullptr;
};

// Attention, cross-attention or feed-forward with its norm; null where an option is off.
template <class real>
struct Sublayer {
  real *input = nullptr, *normed = nullptr, *rstd = nullptr;        // trace
  const real *scale = nullptr, *shift = nullptr;                    // post-norm
  real *d_out = nullptr, *d_normed = nullptr;                       // gradients
  const bool* kept = nullptr;                                       // (B, T, D): dropout on what it adds
};

template <class real>
struct Attended {
  Linear<real> query, out;
  real *q = nullptr, *weights = nullptr, *used = nullptr, *read = nullptr;  // trace
  real *d_query = nullptr, *d_scores = nullptr, *d_read = nullptr;          // gradients
  const bool* kept = nullptr;                                               // (B, H, T, kept_width)
  i64 kept_width = 0;
};

template <class real>
struct Layer {
  i64 reach = 0, width = 0, set = 0;
  Sublayer<real> attention, cross, feed;
  Attended<real> self, source;
  const real* ramp = nullptr;                                       // (H, width)
  const real *source_keys = nullptr, *source_values = nullptr;      // (B, H, J, K)
  Linear<real> inner, outer;
  real *own = nullptr, *d_own = nullptr;
  real *active = nullptr, *d_inner = nullptr;
  const bool* relu_kept = nullptr;                                  // (B, T, F)
};

template <class real>
struct Set {
  i64 memory = 0;
  Linear<real> project;
  const real* old = nullptr;  // (B, R, 2HK)
  real *keys = nullptr, *values = nullptr;
  real *d_old = nullptr, *d_new = nullptr;
};

template <class real>
struct Plan {
  i64 B, T, D, H, K, F, R, G, A, J, sets, steps;
  bool pre, itself, keep;
  real eps, attention_factor, relu_factor, residual_factor;  // 1 / (1 - rate)
  const i64* age;                           // (B, T)
  const bool* source_mask;                  // (B, J)
  const real* mix;                          // (G, A + 1)
  Packed<real> position_forth, position_back;
  const Layer<real>* layers;
  const Set<real>* set;
  const real* x;
  real *const* levels;                      // 1 .. A - 1, by level
  real *y, *memory, *memory_input, *memory_rstd;
  const real *d_y, *d_memory_given;
  real *d_x, *d_memory;
  i64 begin, end;                           // the steps that backward does
};

// A diagonal of a Staircase: its tokens' place among those of all diagonals, how many, the first one's place in the
// call, how many step on and off, cached slots in sight, and slots from before the call.
struct Diagonal {
  i64 place, t, begin, on, off, low, high, old_first, old_last;

  i64 known() const { return high + old_last - old_first; }  // slots before the diagonal's own tokens
  i64 slots(i64 i) const { return known() - low + i + 1; }   // that token i sees, itself included
};

// What a Staircase's call has besides a plan, whose tokens are those of all diagonals. Letters as in staircase_native.py.
template <class real>
struct Stairs {
  i64 T, S, O, before, now, slots, kept_width;
  bool caches_input;
  const Diagonal* diagonals;
  const i64* pass;                                 // of each token of each diagonal
  real* const* levels;                             // A + 1: (R, B, D)
  const real* const* old;                          // a layer each: (B, O, 2HK)
  real *const *d_old, *const *d_keys, *const *d_values;
  const bool *const *kept, *const *relu_kept;      // a pass and layer each: (B, H, T, kept_width), (B, T, F); or null
  const real* const* extra;                        // A + 1: (R, B, D), what the state owes to each level; or null
  real* later;                                     // (t, B, D): gradient of the first level of the diagonal after this
  i64 first, last;                                 // the diagonals that backward does
};

// What happens to the matrices of a DeltaNet along a call, and backwards where gradients come in. Letters and layouts as
// in cores/delta.py; null where there is none.
template <class real>
struct Delta {
  i64 B, T, n, H, K;
  const real *q, *k, *v, *b, *a;                   // a: what the gate leaves
  const bool* start;                               // (B, T)
  const real* before;                              // (B, H, K, K)
  real *read, *after;                              // (B, T, H, K), (B, H, K, K)
  const real *d_read, *d_after;
  real *d_q, *d_k, *d_v, *d_b, *d_log_a, *d_before;
};

// The loops for one instruction set. `work` holds `workspace` reals for a tile of so many rows.
template <class real>
struct Kernels {
  i64 panel;  // columns of a packed panel
  i64 (*workspace)(const Plan<real>&, i64 rows);
  void (*forward)(const Plan<real>&, i64 first, i64 last, real* work);
  void (*backward)(const Plan<real>&, i64 first, i64 last, real* work);
  i64 (*climb_workspace)(const Plan<real>&, const Stairs<real>&, i64 rows);
  void (*climb)(const Plan<real>&, const Stairs<real>&, i64 first, i64 last, real* work);
  void (*descend)(const Plan<real>&, const Stairs<real>&, i64 first, i64 last, real* work);
  real (*log_sum)(const real* x, i64 n);
  void (*highest)(const real* x, i64 n, i64 k, real* scores, i64* symbols);
  i64 (*delta_workspace)(const Delta<real>&);
  void (*delta)(const Delta<real>&, i64 first, i64 last, real* work);  // heads of rows, counted together
  i64 (*decode_scratch)(i64 B, i64 D, i64 positions);
  void (*decode)(const Step<real>&, const StepCall<real>&, Barrier&, i64 thread, i64 threads, real* scratch);
};

template <class real> const Kernels<real>& kernels_generic();
template <class real> const Kernels<real>& kernels_avx2();
template <class real> const Kernels<real>& kernels_avx512();

}  // namespace stairwell
