// One token's step through a model as data: which layers run in which order, which ring buffers each reads over which
// distances, what is written, and the head. Built by decode/native.py from a core's description (cores/step.py).
//
// A step computes numbered vectors: 0 is its input, a the output of the a-th layer application, A + 1 and following are
// mixes of the vectors 0..A.
//
// Letters: B streams, D width, H heads, K head width, F inner width, R positions of a ring, P distances of the position
// table, A layer applications (layers times passes), G mixes, J source tokens, V vocabulary size.
#pragma once

#include <chrono>

#include "interface.h"

namespace stairwell {

enum class Storage : i64 { SAME = 0, BFLOAT16 = 1, INT8 = 2 };

// Rows of a panel. Must equal PANEL_ROWS in decode/packing.py.
constexpr i64 PANEL_ROWS = 32;

// y = W x + b with W (rows, columns) in panels of rows, (panels, columns, PANEL_ROWS), the last one padded with zeros;
// int8 parameters have one scale per row. Scales and biases are padded too.
template <class real>
struct Matrix {
  const void* data = nullptr;
  const real* scale = nullptr;
  const real* bias = nullptr;
  i64 rows = 0, columns = 0;
  Storage storage = Storage::SAME;
};

template <class real>
struct Norm {
  const real *weight = nullptr, *bias = nullptr;
};

template <class real>
struct StepLayer {
  Norm<real> attention_norm, cross_norm, feed_forward_norm;
  Matrix<real> query, key, value, out, inner, outer, cross_query, cross_out;
  const real* ramp = nullptr;  // (H, P): logarithm of the adaptive span, the farthest distance first
  i64 span = 0;                // number of distances with nonzero weight
};

// What a layer application reads from a ring. Window: distances first .. last. Chunks: chunks i-first .. i-last, where i
// is the token's own chunk; last < 0: all earlier tokens of the stream.
struct Read {
  i64 ring;
  bool chunks;
  i64 first, last;

  // The nearest and the farthest distance for a token with `count` tokens before it; none if farthest < nearest. The
  // same rule as `Read.distances` in cores/step.py.
  void distances(i64 count, i64 chunk, i64& nearest, i64& farthest) const {
    const i64 phase = count % chunk;
    nearest = !chunks ? first : first == 0 ? 0 : phase + (first - 1) * chunk + 1;
    farthest = last < 0 ? count : chunks ? phase + last * chunk : last;
    if (farthest > count) farthest = count;
  }
};

// One application of a layer. Before it reads, its input is written to the ring `write`, unless that is negative.
struct Application {
  i64 layer, write;
  const Read* reads;
  i64 n_reads;
};

// What a ring holds: a vector as projected by a layer's keys and values. If `at_end`, it is written after all layers.
struct RingSource {
  i64 layer, vector;
  bool at_end;
};

// A ring of raw vectors, from which states are built: (streams, R, n, D) with the n vectors of each token.
struct RawSource {
  const i64* vectors;
  i64 n;
};

// Elements are of type `real`, or bfloat16.
struct Ring {
  void *keys = nullptr, *values = nullptr;  // (streams, H, K, R)
  i64 R = 0;
};

template <class real>
struct RawRing {
  real* data = nullptr;
  i64 R = 0;
};

// Everything that does not depend on streams. It is not changed after it has been built, so any number of threads may
// decode with it.
template <class real>
struct Step {
  i64 D, H, K, F, P, V, nearest, chunk, G;
  bool pre_norm;
  real eps;
  const real* position;  // (K, P), the farthest distance first
  const real* mix;       // (G, A + 1)
  const StepLayer<real>* layers;
  const Application* applications;
  const RingSource* ring_sources;
  const RawSource* raw_sources;
  i64 A, n_rings, n_raw;
  Norm<real> norm;     // final norm; without weights there is none
  real norm_eps;
  Matrix<real> head;  // (V, D); without parameters there is none
};

// The buffers of one call.
template <class real>
struct StepCall {
  i64 B, J, parts;
  const real* x;              // (B, D)
  const i64* count;           // (B): tokens that each stream has read
  const i64* cursor;          // (rings), then (raw rings): the position to write
  const Ring* rings;
  bool bfloat16_rings;
  const RawRing<real>* raw;
  const i64* source_index;    // (B): the source of each stream
  const bool* source_mask;    // (sources, J)
  // (sources, H, J, K) per layer
  const real *const *source_keys, *const *source_values;
  real* hidden;               // (B, D): the core's output after the final norm
  real* logits;               // (B, V), or null
  // Shared scratch: (B, HK), (B, HK), (B, F), (B, HK), (B, HK), (2, parts, B, D).
  real *q, *z, *inner, *keys, *values, *summands;
};

// Barrier between the stages of a step. Threads spin, because stages take microseconds, and yield after a while,
// because another process may occupy a core.
class Barrier {
 public:
  // Every thread sets the number of threads before its first wait.
  void set_threads(i64 threads) { threads_.store(threads, std::memory_order_relaxed); }
  void wait();
  // Whether one thread would have been faster: a wait was long, and waits took most of the time.
  bool was_slow() const;
  // Whether waits that were longer than a stage take a large part of the time since the barrier was made.
  bool is_wasteful() const;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<bool> was_slow_{false};
  std::atomic<i64> threads_{1}, arrived_{0}, round_{0}, waited_{0};  // waited: in nanoseconds
};

}  // namespace stairwell
