// Decoding: a model's step, which sessions share, and one call per token for all layers and the head.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "call.h"
#include "step.h"

namespace stairwell {

constexpr i64 SPINS = 8000;
constexpr auto SLOW = std::chrono::milliseconds(2);  // about what another process gets when a thread gives way
constexpr auto MIN_WASTE = std::chrono::milliseconds(60);
constexpr i64 MIN_PAUSE = 16, MAX_PAUSE = 1024;  // steps on one thread after a step with a slow barrier

void Barrier::wait() {
  const i64 threads = threads_.load(std::memory_order_relaxed);
  if (threads == 1) return;
  const i64 round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  std::chrono::steady_clock::time_point since;
  i64 spins = 0;
  for (; round_.load(std::memory_order_acquire) == round; ++spins) {
    if (spins == SPINS) since = std::chrono::steady_clock::now();
    if (spins < SPINS) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      sched_yield();
    }
  }
  if (spins <= SPINS) return;
  const auto waited = std::chrono::steady_clock::now() - since;
  waited_.fetch_add(std::chrono::nanoseconds(waited).count(), std::memory_order_relaxed);
  if (waited > SLOW) was_slow_.store(true, std::memory_order_relaxed);
}

bool Barrier::was_slow() const {
  // A step that takes long by itself, with many streams or a long memory, also has long waits.
  if (!was_slow_.load(std::memory_order_relaxed)) return false;
  const i64 waiting = std::max<i64>(1, threads_.load(std::memory_order_relaxed) - 1);
  const std::chrono::nanoseconds waited(waited_.load(std::memory_order_relaxed) / waiting);
  return 2 * waited > std::chrono::steady_clock::now() - start_;
}

bool Barrier::is_wasteful() const {
  const std::chrono::nanoseconds waited(waited_.load(std::memory_order_relaxed));
  return waited > MIN_WASTE && 4 * waited > std::chrono::steady_clock::now() - start_;
}

namespace {

// The parameters and the description of a model's step. Sessions share it.
class Program {
 public:
  virtual ~Program() = default;
};

// The buffers of a session's streams.
class Session {
 public:
  virtual ~Session() = default;
  virtual void set_buffers(Arguments& from) = 0;
  virtual void step(Arguments& from) = 0;
};

template <class real>
class TypedProgram : public Program {
 public:
  explicit TypedProgram(Arguments& from) {
    instruction_set = from.integer();
    step.D = size(from), step.H = size(from), step.K = size(from), step.F = size(from), step.P = size(from);
    step.V = from.integer(), step.nearest = from.integer(), step.chunk = size(from), step.G = from.integer();
    step.pre_norm = from.integer();
    const i64 n_layers = size(from), n_applications = size(from), has_source = from.integer();
    step.n_rings = size(from), step.n_raw = size(from);
    STAIRWELL_CHECK(step.G >= 0 && step.V >= 0 && (step.nearest == 0 || step.nearest == 1),
                    "stairwell: sizes of the step are inconsistent");
    step.eps = static_cast<real>(from.real());
    step.norm_eps = static_cast<real>(from.real());
    const Tensors tensors = from.tensors();
    PointerList next(tensors, "the step's parameters");
    const i64 D = step.D, HK = step.H * step.K;
    step.position = next.next<const real>({step.K, step.P});
    step.mix = next.next<const real>({step.G, n_applications + 1});
    layers.resize(n_layers);
    for (auto& layer : layers) {
      layer.span = from.integer();
      layer.attention_norm = read_norm(next);
      layer.feed_forward_norm = read_norm(next);
      layer.query = read_matrix(next, from, HK, D);
      const bool projects = from.integer();
      layer.key = read_matrix(next, from, projects ? HK : 0, D);
      layer.value = read_matrix(next, from, projects ? HK : 0, D);
      layer.out = read_matrix(next, from, D, HK);
      layer.inner = read_matrix(next, from, step.F, D);
      layer.outer = read_matrix(next, from, D, step.F);
      layer.ramp = next.optional<const real>({step.H, step.P});
      if (has_source) {
        layer.cross_norm = read_norm(next);
        layer.cross_query = read_matrix(next, from, HK, D);
        layer.cross_out = read_matrix(next, from, D, HK);
      }
    }
    step.norm.weight = next.optional<const real>({D});
    step.norm.bias = next.optional<const real>({D});
    step.head = read_matrix(next, from, step.V, D);
    next.end();
    const i64 n_vectors = n_applications + 1 + step.G;
    for (i64 r = 0; r < step.n_rings; ++r) {
      const RingSource source{index(from, n_layers), index(from, n_vectors), from.integer() != 0};
      STAIRWELL_CHECK(layers[source.layer].key.data, "stairwell: a layer without keys cannot write a ring");
      ring_sources.push_back(source);
    }
    for (i64 r = 0; r < step.n_raw; ++r) {
      std::vector<i64> vectors = from.integers();
      for (i64 v : vectors) STAIRWELL_CHECK(0 <= v && v < n_vectors, "stairwell: an index is out of range");
      lists.push_back(std::move(vectors));  // moving a vector keeps the address of its elements
      raw_sources.push_back({lists.back().data(), static_cast<i64>(lists.back().size())});
    }
    for (i64 a = 0; a < n_applications; ++a) applications.push_back(read_application(from));
    from.end();
    step.layers = layers.data();
    step.applications = applications.data();
    step.ring_sources = ring_sources.data();
    step.raw_sources = raw_sources.data();
    step.A = n_applications;
  }

  bool has_source() const { return layers[0].cross_query.data != nullptr; }

  i64 instruction_set;
  Step<real> step{};
  std::vector<StepLayer<real>> layers;
  std::vector<Application> applications;
  std::vector<RingSource> ring_sources;
  std::vector<RawSource> raw_sources;

 private:
  static i64 size(Arguments& from) {
    const i64 n = from.integer();
    STAIRWELL_CHECK(0 < n && n < (i64{1} << 31), "stairwell: a size is not positive or too large");
    return n;
  }
  static i64 index(Arguments& from, i64 n) {
    const i64 i = from.integer();
    STAIRWELL_CHECK(0 <= i && i < n, "stairwell: an index is out of range");
    return i;
  }

  Norm<real> read_norm(PointerList& next) const {
    const real* weight = next.next<const real>({step.D});
    return {weight, next.next<const real>({step.D})};
  }

  // Packed parameters, their scales (int8) and a bias. The storage type is an integer argument.
  static Matrix<real> read_matrix(PointerList& next, Arguments& from, i64 rows, i64 columns) {
    const i64 storage = from.integer();
    STAIRWELL_CHECK(0 <= storage && storage <= 2 && (storage == 0 || std::is_same_v<real, float>),
                    "stairwell: unknown storage type of parameters");
    Matrix<real> matrix;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.storage = static_cast<Storage>(storage);
    const i64 padded = (rows + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS;
    matrix.data = next.stored(static_cast<Storage>(storage), {padded, columns}, element_type<real>());
    matrix.scale = next.next_if<const real>(matrix.storage == Storage::INT8 && rows > 0, {padded});
    matrix.bias = next.optional<const real>({padded});
    return matrix;
  }

  Application read_application(Arguments& from) {
    Application application;
    application.layer = index(from, static_cast<i64>(layers.size()));
    application.write = index(from, step.n_rings + 1) - 1;
    const i64 reads = from.integer();
    STAIRWELL_CHECK(0 <= reads && reads < (1 << 20), "stairwell: too many reads");
    std::vector<Read> list;
    for (i64 i = 0; i < reads; ++i) {
      const Read read{index(from, step.n_rings), from.integer() != 0, from.integer(), from.integer()};
      STAIRWELL_CHECK(read.first >= 0 && read.first < (i64{1} << 31) && read.last < (i64{1} << 31),
                      "stairwell: the distances of a read are invalid");
      list.push_back(read);
    }
    reads_.push_back(std::move(list));
    application.reads = reads_.back().data();
    application.n_reads = reads;
    return application;
  }

  std::vector<std::vector<Read>> reads_;
  std::vector<std::vector<i64>> lists;
};

template <class real>
class TypedSession : public Session {
 public:
  explicit TypedSession(const TypedProgram<real>& program) : program_(program) {}

  // Set the ring buffers, the rings of raw vectors and the sources: sizes, then tensors.
  void set_buffers(Arguments& from) override {
    const Step<real>& step = program_.step;
    const i64 HK = step.H * step.K;
    capacity_ = from.integer();
    J_ = from.integer();
    sources_ = from.integer();
    bfloat16_rings_ = from.integer();
    const Storage storage = bfloat16_rings_ ? Storage::BFLOAT16 : Storage::SAME;
    STAIRWELL_CHECK(!bfloat16_rings_ || (std::is_same_v<real, float>), "stairwell: rings in bfloat16 require float32");
    const std::vector<i64> sizes = from.integers();
    STAIRWELL_CHECK(static_cast<i64>(sizes.size()) == step.n_rings + step.n_raw, "stairwell: expected a size per ring");
    const Tensors tensors = from.tensors();
    PointerList next(tensors, "rings");
    rings_.assign(step.n_rings, {});
    raw_.assign(step.n_raw, {});
    positions_ = J_;
    for (i64 r = 0; r < step.n_rings; ++r) {
      rings_[r].R = sizes[r];
      rings_[r].keys = next.stored(storage, {capacity_, HK, sizes[r]}, element_type<real>());
      rings_[r].values = next.stored(storage, {capacity_, HK, sizes[r]}, element_type<real>());
    }
    for (i64 r = 0; r < step.n_raw; ++r) {
      raw_[r].R = sizes[step.n_rings + r];
      raw_[r].data = next.next<real>({capacity_, raw_[r].R * program_.raw_sources[r].n, step.D});
    }
    for (const auto& at : program_.applications) {
      i64 positions = 0;
      for (i64 i = 0; i < at.n_reads; ++i) positions += rings_[at.reads[i].ring].R;
      positions_ = std::max(positions_, positions);
    }
    source_mask_ = next.next<const bool>({sources_, J_});
    source_keys_.clear();
    source_values_.clear();
    for (size_t l = 0; l < program_.layers.size(); ++l) {
      const bool present = program_.has_source() && J_ > 0;
      source_keys_.push_back(next.next_if<const real>(present, {sources_, HK, J_}));
      source_values_.push_back(next.next_if<const real>(present, {sources_, HK, J_}));
    }
    next.end();
    from.end();
  }

  // Arguments: batch size, whether to compute logits, cursors of the rings and of the raw rings; count, source_index,
  // x (B, D), hidden (B, D), logits (B, V).
  void step(Arguments& from) override {
    const Step<real>& step = program_.step;
    const i64 B = from.integer(), has_logits = from.integer();
    const std::vector<i64> cursor = from.integers();
    const Tensors tensors = from.tensors();
    from.end();
    STAIRWELL_CHECK(0 < B && B <= capacity_, "stairwell: the rings hold ", capacity_, " streams, not ", B);
    STAIRWELL_CHECK(static_cast<i64>(cursor.size()) == step.n_rings + step.n_raw,
                    "stairwell: expected one cursor per ring");
    for (i64 r = 0; r < step.n_rings; ++r)
      STAIRWELL_CHECK(0 <= cursor[r] && cursor[r] < rings_[r].R, "stairwell: cursor out of range");
    for (i64 r = 0; r < step.n_raw; ++r) {
      const i64 at = cursor[step.n_rings + r];
      STAIRWELL_CHECK(0 <= at && (at < raw_[r].R || !raw_[r].R), "stairwell: cursor out of range");
    }
    STAIRWELL_CHECK(!has_logits || step.head.data, "stairwell: the step has no head");
    const i64 D = step.D, HK = step.H * step.K;
    PointerList next(tensors, "the step's buffers");
    StepCall<real> call{};
    call.B = B;
    call.J = J_;
    call.count = next.next<const i64>({B});
    call.source_index = next.optional<const i64>({B});
    call.x = next.next<const real>({B, D});
    call.hidden = next.next<real>({B, D});
    call.logits = next.next_if<real>(has_logits, {B, step.V});
    next.end();
    call.cursor = cursor.data();
    call.rings = rings_.data();
    call.bfloat16_rings = bfloat16_rings_;
    call.raw = raw_.data();
    call.source_mask = source_mask_;
    call.source_keys = source_keys_.data();
    call.source_values = source_values_.data();
    for (i64 b = 0; b < B; ++b) {
      STAIRWELL_CHECK(call.count[b] >= 0, "stairwell: a count is negative: ", call.count[b]);
      STAIRWELL_CHECK(!call.source_index || (0 <= call.source_index[b] && call.source_index[b] < sources_),
                      "stairwell: source index out of range");
      if (b == 0 || call.count[b] != call.count[b - 1]) check_reads(call.count[b]);
    }
    STAIRWELL_CHECK(!program_.has_source() || J_ == 0 || call.source_index, "stairwell: source indices are missing");
    const Kernels<real>& use = kernels<real>(program_.instruction_set);
    const i64 own = use.decode_scratch(step, B, positions_);
    call.parts = get_num_threads();
    const i64 threads = remaining_pause_ ? 1 : call.parts;
    if (remaining_pause_) --remaining_pause_;
    const i64 needed = B * (4 * HK + step.F + 2 * call.parts * D) + threads * own + 64;
    if (needed > scratch_size_) {
      scratch_ = std::make_unique<Scratch<real>>(needed, true);
      scratch_size_ = needed;
    }
    real* at = scratch_->data();
    for (real** to : {&call.q, &call.z, &call.keys, &call.values}) {
      *to = at;
      at += B * HK;
    }
    call.inner = at;
    at += B * step.F;
    call.summands = at;
    at += 2 * call.parts * B * D;
    const bool slow = on_threads(threads, [&](i64 thread, i64 n, Barrier& barrier) {
      use.decode(step, call, barrier, thread, n, at + thread * own);
    });
    // Where another process keeps a core busy, a thread that waits for its turn makes all others wait: then one thread is
    // faster than several, until a later step finds the cores free again.
    if (slow) {
      pause_ = std::min(MAX_PAUSE, std::max(MIN_PAUSE, 2 * pause_));
      remaining_pause_ = pause_;
    } else if (threads > 1) {
      pause_ = 0;
    }
  }

 private:
  // Check that no read exceeds its ring, for a stream that has read `count` tokens.
  void check_reads(i64 count) const {
    const Step<real>& step = program_.step;
    for (const auto& at : program_.applications)
      for (i64 i = 0; i < at.n_reads; ++i) {
        const Read& read = at.reads[i];
        const i64 R = rings_[read.ring].R;
        i64 first, last;
        read.distances(count, step.chunk, first, last);
        last = std::min(last, step.nearest + program_.layers[at.layer].span - 1);
        STAIRWELL_CHECK(last < first || (last < R && last < step.nearest + step.P),
                        "stairwell: a ring of ", R, " positions is too short for distance ", last);
      }
  }

  const TypedProgram<real>& program_;
  std::vector<Ring> rings_;
  bool bfloat16_rings_ = false;
  std::vector<RawRing<real>> raw_;
  std::vector<const real*> source_keys_, source_values_;
  i64 capacity_ = 0, J_ = 0, sources_ = 0, positions_ = 0, scratch_size_ = 0, pause_ = 0, remaining_pause_ = 0;
  const bool* source_mask_ = nullptr;
  std::unique_ptr<Scratch<real>> scratch_;
};

}  // namespace

void* decode_program_new(bool float64, Arguments& from) {
  return float64 ? static_cast<Program*>(new TypedProgram<double>(from)) : new TypedProgram<float>(from);
}
void decode_program_free(void* program) { delete static_cast<Program*>(program); }
void* decode_session_new(void* program) {
  auto* typed = dynamic_cast<TypedProgram<float>*>(static_cast<Program*>(program));
  if (typed) return static_cast<Session*>(new TypedSession<float>(*typed));
  return static_cast<Session*>(new TypedSession<double>(*static_cast<TypedProgram<double>*>(static_cast<Program*>(program))));
}
void decode_session_set_buffers(void* session, Arguments& from) { static_cast<Session*>(session)->set_buffers(from); }
void decode_session_step(void* session, Arguments& from) { static_cast<Session*>(session)->step(from); }
void decode_session_free(void* session) { delete static_cast<Session*>(session); }

}  // namespace stairwell
