// A tile of the batch: offsets into the tensors and scratch memory. Included once per instruction set, inside namespace
// stairwell::STAIRWELL_ISA, after vector.h. Keys and values stay in cache across the layers that share them.
//
// A team of threads runs a tile through the whole segment. With one thread nothing waits for others. Several threads
// share the output columns of each product, the rows of norms, and the heads of attention; `wait` separates these stages.
// Every element is computed by the same operations in either case. Letters as in segment_data.py.

constexpr i64 PADDING = 64;  // elements after a row of scores that may be overwritten

template <class real>
struct Tile {
  const Plan<real>& p;
  Team team;
  i64 b0, M;     // first batch element and number of them
  real* scores;  // (M * H, score_row)
  real* x;       // (M, D): between sublayers
  real* grad;    // (M, D)
  real* dx;      // (M, D)
  real* kv;      // (M, 2HK): new keys and values
  real* present;  // (J): 1 for source tokens, 0 for padding; of this thread

  static i64 score_row(const Plan<real>& p) { return max(p.R + 1, p.J) + PADDING; }

  static i64 workspace(const Plan<real>& p, i64 batch, i64 threads = 1) {
    return batch * (p.H * (score_row(p) + 2 * p.K) + 3 * p.D) + threads * p.J + PADDING;
  }

  Tile(const Plan<real>& plan, i64 first, i64 last, real* work, const Team& team = {})
      : p(plan), team(team), b0(first), M(last - first) {
    scores = work;
    x = scores + M * p.H * score_row(p);
    grad = x + M * p.D;
    dx = grad + M * p.D;
    kv = dx + M * p.D;
    present = kv + M * 2 * p.H * p.K + team.thread * p.J;
  }

  void wait() const { team.wait(); }

  // This thread's share of the tile's streams, of its pairs of a stream and a head, and of the columns of a product.
  struct Range {
    i64 first, last;
    i64 size() const { return last - first; }
  };
  Range share(i64 n) const { return {n * team.thread / team.threads, n * (team.thread + 1) / team.threads}; }
  Range rows() const { return share(M); }
  Range pairs() const { return share(M * p.H); }
  Range columns(i64 n) const {
    const Range panels = share((n + PANEL<real> - 1) / PANEL<real>);
    return {min(n, panels.first * PANEL<real>), min(n, panels.last * PANEL<real>)};
  }

  // This thread's columns of C (M, N) = init + bias + A (M, depth) B.
  void multiply_columns(i64 N, i64 depth, const real* A, const Packed<real>& B, real* C, const real* init = nullptr,
                        const real* bias = nullptr) const {
    const Range c = columns(N);
    if (c.size() <= 0) return;
    multiply<real>(M, c.size(), depth, A, depth, {B.data + c.first * B.depth, B.depth}, C + c.first, N,
                   init ? init + c.first : nullptr, N, bias ? bias + c.first : nullptr);
  }

  // Offset of the tile's part of token i in a tensor (tokens, B, width).
  i64 at(i64 i, i64 width) const { return (i * p.B + b0) * width; }

  void copy(const real* from, real* to, i64 n) const { __builtin_memcpy(to, from, n * sizeof(real)); }

  void zero(real* to, i64 n) const { __builtin_memset(to, 0, n * sizeof(real)); }

  void add(real factor, const real* from, real* to, i64 n) const {
    for (i64 j = 0; j < n; ++j) to[j] += factor * from[j];
  }

  // Apply residual dropout to some rows and columns of (M, D), forward or backward.
  void drop(const Sublayer<real>& sub, i64 t, real* to, Range rows, Range columns) const {
    for (i64 r = rows.first; r < rows.last; ++r) {
      const bool* mask = sub.mask + ((b0 + r) * p.T + t) * p.D;
      for (i64 d = columns.first; d < columns.last; ++d) to[r * p.D + d] *= mask[d] * p.residual_factor;
    }
  }

  // Call f with pointers to the keys and values of a group, of the type in which they are stored.
  template <class F>
  void with_kv(const KVGroup<real>& group, F f) const {
    if (p.rounds_kv) return f(group.rounded_keys, group.rounded_values);
    f(group.keys, group.values);
  }

  // Store n elements of a key or value.
  template <class Stored>
  void store_kv(const real* from, Stored* to, i64 n) const {
    for (i64 j = 0; j < n; ++j) set_element<real>(to + j, from[j]);
  }

  // Number of memory slots visible to a head: a prefix, since slots are ordered by distance.
  i64 visible_slots(const Layer<real>& layer, i64 b, i64 h, i64 t) const {
    i64 n = min(layer.span, p.since_start[b * p.T + t]);
    if (layer.ramp) {
      const real* ramp = layer.ramp + h * layer.width + p.attend_to_current;
      while (n > 0 && !(ramp[n - 1] > 0)) --n;
    }
    return n;
  }
};
