// A tile of rows: where its parts of each tensor lie, and its scratch memory.
// Included once for each instruction set, inside namespace stairwell::STAIRWELL_ISA, after vector.h.
// A tile goes through the whole segment alone: no other thread is waited for, and its keys and values stay in cache
// through the layers that share them. Letters and layouts as in segment.py.

constexpr i64 ROOM = 64;  // reals after a row of scores that may be overwritten

template <class real>
struct Tile {
  const Plan<real>& p;
  i64 b0, M;     // first row and how many
  real* scores;  // (M * H, score_row)
  real* x;       // (M, D): between sublayers
  real* grad;    // (M, D)
  real* dx;      // (M, D)
  real* pairs;   // (M, 2HK): new keys and values
  real* there;   // (J): 1 where the source is there, 0 elsewhere

  static i64 score_row(const Plan<real>& p) { return most(p.R + 1, p.J) + ROOM; }

  static i64 workspace(const Plan<real>& p, i64 rows) {
    return rows * (p.H * (score_row(p) + 2 * p.K) + 3 * p.D) + p.J + ROOM;
  }

  Tile(const Plan<real>& plan, i64 first, i64 last, real* work) : p(plan), b0(first), M(last - first) {
    scores = work;
    x = scores + M * p.H * score_row(p);
    grad = x + M * p.D;
    dx = grad + M * p.D;
    pairs = dx + M * p.D;
    there = pairs + M * 2 * p.H * p.K;
  }

  // Where the tile's part of step i begins in a tensor (steps, B, width).
  i64 at(i64 i, i64 width) const { return (i * p.B + b0) * width; }

  void copy(const real* from, real* to, i64 n) const { __builtin_memcpy(to, from, n * sizeof(real)); }

  void zero(real* to, i64 n) const { __builtin_memset(to, 0, n * sizeof(real)); }

  void add(real factor, const real* from, real* to, i64 n) const {
    for (i64 j = 0; j < n; ++j) to[j] += factor * from[j];
  }

  // A sublayer's dropout on (M, D), forward or backward.
  void drop(const Sublayer<real>& sub, i64 t, real* rows) const {
    for (i64 r = 0; r < M; ++r) {
      const bool* kept = sub.kept + ((b0 + r) * p.T + t) * p.D;
      for (i64 d = 0; d < p.D; ++d) rows[r * p.D + d] *= kept[d] * p.residual_factor;
    }
  }

  // How many slots of the memory a head sees: a prefix by distance.
  i64 visible_slots(const Layer<real>& layer, i64 b, i64 h, i64 t) const {
    i64 n = least(layer.reach, p.age[b * p.T + t]);
    if (layer.ramp) {
      const real* ramp = layer.ramp + h * layer.width + p.itself;
      while (n > 0 && !(ramp[n - 1] > 0)) --n;
    }
    return n;
  }
};
