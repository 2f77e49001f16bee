// One token's step through a core as data: which layers run in which order, which buffers each reads over which
// distances, what is written, and how memory entries are formed. Built by decode/native.py from a core's description.
//
// Letters: B streams, D width, H heads, K head width, F inner width, R positions of a ring, P distances of the position
// table, A layer applications (layers times passes), G memory entries, J source tokens.
#pragma once

#include "interface.h"

namespace stairwell {

enum class Storage : i64 { SAME = 0, BFLOAT16 = 1, INT8 = 2 };

// y = W x + b with W (rows, columns); int8 parameters have one scale per row.
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
  const real *source_keys = nullptr, *source_values = nullptr;  // (sources, H, J, K)
};

// What a layer application reads from a ring. Window: distances first .. last. Chunks: chunks i-first .. i-last, where i
// is the token's own chunk; last < 0: all earlier tokens of the stream.
struct Read {
  i64 ring;
  bool chunks;
  i64 first, last;
};

enum class Write : i64 { NEVER = 0, BEFORE = 1, AFTER = 2 };

// One application of a layer. If it writes, the input projected by `projection` goes into `ring`.
struct Application {
  i64 layer, ring, projection;
  Write write;
  const Read* reads;
  i64 n_reads;
};

// Memory `memory`, projected by a layer's keys and values, written to a ring at the end of the step.
struct Entry {
  i64 ring, layer, memory;
};

template <class real>
struct Ring {
  real *keys = nullptr, *values = nullptr;  // (streams, H, K, R)
  i64 R = 0;
};

template <class real>
struct Step {
  i64 D, H, K, F, P, nearest, chunk, G;
  bool pre_norm;
  real eps;
  const real* position;  // (K, P), the farthest distance first
  const real* mix;       // (G, A + 1)
  const StepLayer<real>* layers;
  const Application* applications;
  const Entry* entries;
  i64 A, n_entries;
};

// The buffers of one call.
template <class real>
struct StepCall {
  i64 B, J;
  const i64* count;           // (B): tokens that each stream has read
  const i64* cursor;          // (rings): the position to write
  const Ring<real>* rings;
  const i64* source_index;    // (B): the source of each stream
  const bool* source_mask;    // (sources, J)
  real* layer_outputs;        // (A + 1, B, D): the first is the input
  real* memory;               // (G, B, D)
  real *q, *z, *inner, *keys, *values;  // shared scratch: (B, HK), (B, HK), (B, F), (B, HK), (B, HK)
  i64 scratch;                // elements of each thread's scratch
};

// Barrier between the stages of a step. Threads spin, because stages take microseconds, and yield after a while,
// because another process may occupy a core.
class Barrier {
 public:
  // Every thread sets the number of threads before its first wait.
  void set_threads(i64 threads) { threads_.store(threads, std::memory_order_relaxed); }
  void wait();

 private:
  std::atomic<i64> threads_{1}, arrived_{0}, round_{0};
};

}  // namespace stairwell
