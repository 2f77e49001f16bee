// Decoding: a step description that is kept between calls, and one call per token for all layers.
#include <sched.h>

#include <memory>

#include "call.h"
#include "step.h"

namespace stairwell {

void Barrier::wait() {
  const i64 threads = threads_.load(std::memory_order_relaxed);
  if (threads == 1) return;
  const i64 round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (i64 spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
    if (spins < 20000) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      sched_yield();
    }
  }
}

namespace {

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void set_rings(Arguments& from) = 0;
  virtual void step(Arguments& from) = 0;
};

template <class real>
class TypedDecoder : public Decoder {
 public:
  explicit TypedDecoder(Arguments& from) {
    instruction_set = from.integer();
    step_.D = size(from), step_.H = size(from), step_.K = size(from), step_.F = size(from), step_.P = size(from);
    step_.nearest = from.integer(), step_.chunk = size(from), step_.G = from.integer();
    step_.pre_norm = from.integer();
    const i64 layers = size(from), applications = size(from), entries = from.integer(), has_source = from.integer();
    rings_.resize(size(from));
    STAIRWELL_CHECK(step_.G >= 0 && entries >= 0 && (step_.nearest == 0 || step_.nearest == 1),
                    "stairwell: sizes of the step are inconsistent");
    step_.eps = static_cast<real>(from.real());
    const Tensors tensors = from.tensors();
    PointerList next(tensors, "the step's parameters");
    const i64 D = step_.D, HK = step_.H * step_.K;
    step_.position = next.next<const real>({step_.K, step_.P});
    step_.mix = next.next<const real>({step_.G, applications + 1});
    layers_.resize(layers);
    for (auto& layer : layers_) {
      layer.span = from.integer();
      layer.attention_norm = read_norm(next);
      layer.feed_forward_norm = read_norm(next);
      layer.query = read_matrix(next, from, HK, D);
      const bool projects = from.integer();
      layer.key = read_matrix(next, from, projects ? HK : 0, D);
      layer.value = read_matrix(next, from, projects ? HK : 0, D);
      layer.out = read_matrix(next, from, D, HK);
      layer.inner = read_matrix(next, from, step_.F, D);
      layer.outer = read_matrix(next, from, D, step_.F);
      layer.ramp = next.optional<const real>({step_.H, step_.P});
      if (has_source) {
        layer.cross_norm = read_norm(next);
        layer.cross_query = read_matrix(next, from, HK, D);
        layer.cross_out = read_matrix(next, from, D, HK);
      }
    }
    next.end();
    for (i64 a = 0; a < applications; ++a) applications_.push_back(read_application(from));
    for (i64 e = 0; e < entries; ++e) {
      const Entry entry{ring(from), index(from, layers), index(from, step_.G)};
      STAIRWELL_CHECK(layers_[entry.layer].key.data, "stairwell: a layer without keys cannot write memory");
      entries_.push_back(entry);
    }
    from.end();
    step_.layers = layers_.data();
    step_.applications = applications_.data();
    step_.entries = entries_.data();
    step_.A = static_cast<i64>(applications_.size());
    step_.n_entries = static_cast<i64>(entries_.size());
  }

  // Set the ring buffers and the optional source: sizes of the rings, then tensors.
  void set_rings(Arguments& from) override {
    capacity_ = from.integer();
    J_ = from.integer();
    sources_ = from.integer();
    const i64 HK = step_.H * step_.K;
    std::vector<i64> sizes;
    for (size_t r = 0; r < rings_.size(); ++r) sizes.push_back(from.integer());
    const Tensors tensors = from.tensors();
    PointerList next(tensors, "rings");
    positions_ = J_;
    for (size_t r = 0; r < rings_.size(); ++r) {
      rings_[r].R = sizes[r];
      rings_[r].keys = next.next<real>({capacity_, HK, sizes[r]});
      rings_[r].values = next.next<real>({capacity_, HK, sizes[r]});
    }
    for (const auto& at : applications_) {
      i64 positions = 0;
      for (i64 i = 0; i < at.n_reads; ++i) positions += rings_[at.reads[i].ring].R;
      positions_ = std::max(positions_, positions);
    }
    source_mask_ = next.next<const bool>({sources_, J_});
    for (auto& layer : layers_) {
      const bool present = layer.cross_query.data && J_ > 0;
      layer.source_keys = next.next_if<const real>(present, {sources_, HK, J_});
      layer.source_values = next.next_if<const real>(present, {sources_, HK, J_});
    }
    next.end();
    from.end();
  }

  void step(Arguments& from) override {
    const i64 B = from.integer();
    std::vector<i64> cursor = from.integers();
    const Tensors tensors = from.tensors();
    from.end();
    STAIRWELL_CHECK(0 < B && B <= capacity_, "stairwell: the rings hold ", capacity_, " streams, not ", B);
    STAIRWELL_CHECK(cursor.size() == rings_.size(), "stairwell: expected one cursor per ring");
    for (size_t r = 0; r < rings_.size(); ++r)
      STAIRWELL_CHECK(0 <= cursor[r] && (cursor[r] < rings_[r].R || !rings_[r].R), "stairwell: cursor out of range");
    const i64 D = step_.D, HK = step_.H * step_.K, A = step_.A;
    PointerList next(tensors, "the step's buffers");
    StepCall<real> call{};
    call.B = B;
    call.J = J_;
    call.count = next.next<const i64>({B});
    call.source_index = next.optional<const i64>({B});
    call.layer_outputs = next.next<real>({A + 1, B, D});
    call.memory = next.next<real>({step_.G, B, D});
    next.end();
    call.cursor = cursor.data();
    call.rings = rings_.data();
    call.source_mask = source_mask_;
    for (i64 b = 0; b < B; ++b) {
      STAIRWELL_CHECK(call.count[b] >= 0, "stairwell: a count is negative: ", call.count[b]);
      STAIRWELL_CHECK(!call.source_index || (0 <= call.source_index[b] && call.source_index[b] < sources_),
                      "stairwell: source index out of range");
      check_reads(call.count[b]);
    }
    for (const auto& layer : layers_)
      STAIRWELL_CHECK(!layer.cross_query.data || J_ == 0 || call.source_index, "stairwell: source indices are missing");
    const Kernels<real>& use = kernels<real>(instruction_set);
    const i64 own = use.decode_scratch(B, D, positions_);
    const i64 threads = get_num_threads();
    const i64 shared = B * (4 * HK + step_.F);
    const i64 needed = shared + threads * own + 64;
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
    at += B * step_.F;
    on_threads(threads, [&](i64 thread, i64 n, Barrier& barrier) {
      use.decode(step_, call, barrier, thread, n, at + thread * own);
    });
  }

 private:
  // Call f(thread, threads, barrier) on concurrent threads.
  template <class F>
  static void on_threads(i64 threads, const F& f) {
    struct Shared {
      const F& f;
      Barrier barrier;
    } shared{f, {}};
    if (threads == 1) return f(0, 1, shared.barrier);
    const Task task = [](void* data, i64 thread, i64 n) {
      Shared& s = *static_cast<Shared*>(data);
      s.barrier.set_threads(n);
      s.f(thread, n, s.barrier);
    };
    run_on_threads()(task, &shared, threads);
  }

  // Check that no read exceeds its ring, for a stream that has read `count` tokens.
  void check_reads(i64 count) const {
    const i64 phase = count % step_.chunk;
    for (const auto& at : applications_)
      for (i64 i = 0; i < at.n_reads; ++i) {
        const Read& read = at.reads[i];
        const i64 R = rings_[read.ring].R;
        const i64 last = read.chunks ? (read.last < 0 ? count : phase + read.last * step_.chunk) : read.last;
        const i64 first = read.chunks && read.first ? phase + (read.first - 1) * step_.chunk + 1 : read.first;
        const i64 farthest = std::min({last, count, step_.nearest + layers_[at.layer].span - 1});
        STAIRWELL_CHECK(farthest < first || (farthest <= R && farthest < step_.nearest + step_.P &&
                                             farthest - first + 1 <= R),
                        "stairwell: a ring of ", R, " positions is too short for distance ", farthest);
      }
  }

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
  i64 ring(Arguments& from) const { return index(from, static_cast<i64>(rings_.size())); }

  Norm<real> read_norm(PointerList& next) const {
    const real* weight = next.next<const real>({step_.D});
    return {weight, next.next<const real>({step_.D})};
  }

  // Parameters (rows, columns), their scales (int8) and a bias. The storage type is an integer argument.
  static Matrix<real> read_matrix(PointerList& next, Arguments& from, i64 rows, i64 columns) {
    const i64 storage = from.integer();
    STAIRWELL_CHECK(0 <= storage && storage <= 2 && (storage == 0 || std::is_same_v<real, float>),
                    "stairwell: unknown storage type of parameters");
    Matrix<real> matrix;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.storage = static_cast<Storage>(storage);
    matrix.data = next.stored(static_cast<Storage>(storage), {rows, columns}, element_type<real>());
    matrix.scale = next.next_if<const real>(matrix.storage == Storage::INT8 && rows > 0, {rows});
    matrix.bias = next.optional<const real>({rows});
    return matrix;
  }

  Application read_application(Arguments& from) {
    const i64 layers = static_cast<i64>(layers_.size());
    Application application;
    application.layer = index(from, layers);
    application.write = static_cast<Write>(index(from, 3));
    application.ring = ring(from);
    application.projection = index(from, layers);
    STAIRWELL_CHECK(application.write == Write::NEVER || layers_[application.projection].key.data,
                    "stairwell: a layer without keys cannot write a ring");
    const i64 reads = from.integer();
    STAIRWELL_CHECK(0 <= reads && reads < (1 << 20), "stairwell: too many reads");
    std::vector<Read> list;
    for (i64 i = 0; i < reads; ++i) {
      const Read read{ring(from), from.integer() != 0, from.integer(), from.integer()};
      STAIRWELL_CHECK(read.first >= 0 && read.first < (i64{1} << 31) && read.last < (i64{1} << 31) &&
                          (read.chunks || read.last >= 0),
                      "stairwell: the distances of a read are invalid");
      list.push_back(read);
    }
    reads_.push_back(std::move(list));  // moving a vector keeps the address of its elements
    application.reads = reads_.back().data();
    application.n_reads = reads;
    return application;
  }

  i64 instruction_set;
  Step<real> step_{};
  std::vector<StepLayer<real>> layers_;
  std::vector<Application> applications_;
  std::vector<std::vector<Read>> reads_;
  std::vector<Entry> entries_;
  std::vector<Ring<real>> rings_;
  i64 capacity_ = 0, J_ = 0, sources_ = 0, positions_ = 0, scratch_size_ = 0;
  const bool* source_mask_ = nullptr;
  std::unique_ptr<Scratch<real>> scratch_;
};

}  // namespace

void* decoder_new(bool float64, Arguments& from) {
  return float64 ? static_cast<Decoder*>(new TypedDecoder<double>(from)) : new TypedDecoder<float>(from);
}
void decoder_set_rings(void* decoder, Arguments& from) { static_cast<Decoder*>(decoder)->set_rings(from); }
void decoder_step(void* decoder, Arguments& from) { static_cast<Decoder*>(decoder)->step(from); }
void decoder_free(void* decoder) { delete static_cast<Decoder*>(decoder); }

}  // namespace stairwell
