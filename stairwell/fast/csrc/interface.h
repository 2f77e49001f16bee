// The C interface between Python (native.py) and the kernels: views of tensors, arguments, errors and threads.
// It depends on neither Python nor torch: the library builds with a compiler alone and works with any version of both.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace stairwell {

using i64 = int64_t;

enum class ElementType : i64 { FLOAT32 = 0, FLOAT64 = 1, BOOL = 2, INT64 = 3, BFLOAT16 = 4, INT8 = 5, OTHER = 6 };

// A tensor; `dense` if it is contiguous and on the CPU. Same layout as in native.py: four 64-bit integers.
struct Tensor {
  void* data;
  i64 size;
  i64 type;
  i64 dense;

  i64 numel() const { return size; }
};
static_assert(sizeof(Tensor) == 4 * sizeof(i64), "Tensor must match native.py");
using Tensors = std::vector<Tensor>;

template <class... Parts>
[[noreturn]] inline void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

#define STAIRWELL_CHECK(condition, ...) \
  do {                                  \
    if (!(condition)) fail(__VA_ARGS__); \
  } while (false)

// Arguments of an operator in the order of its schema, in one array per type: integers and booleans, floats, tensors. A
// list is preceded by its length among the integers.
class Arguments {
 public:
  Arguments(const i64* integers, i64 n_integers, const double* floats, i64 n_floats, const Tensor* tensors,
            i64 n_tensors)
      : integers_(integers, integers + n_integers),
        floats_(floats, floats + n_floats),
        tensors_(tensors, tensors + n_tensors) {}

  i64 integer() { return take(integers_, integer_at_); }
  double real() { return take(floats_, float_at_); }
  Tensor tensor() { return take(tensors_, tensor_at_); }
  std::vector<i64> integers() { return list(integers_, integer_at_); }
  Tensors tensors() { return list(tensors_, tensor_at_); }

  void end() const {
    STAIRWELL_CHECK(integer_at_ == integers_.size() && float_at_ == floats_.size() && tensor_at_ == tensors_.size(),
                    "stairwell: too many arguments");
  }

 private:
  template <class type>
  static type take(const std::vector<type>& from, size_t& at) {
    STAIRWELL_CHECK(at < from.size(), "stairwell: too few arguments");
    return from[at++];
  }
  template <class type>
  std::vector<type> list(const std::vector<type>& from, size_t& at) {
    const i64 length = integer();
    STAIRWELL_CHECK(0 <= length && static_cast<size_t>(length) <= from.size() - at, "stairwell: too few arguments");
    std::vector<type> values(from.begin() + at, from.begin() + at + length);
    at += length;
    return values;
  }

  std::vector<i64> integers_;
  std::vector<double> floats_;
  std::vector<Tensor> tensors_;
  size_t integer_at_ = 0, float_at_ = 0, tensor_at_ = 0;
};

// Number of threads of the current call, and the function that runs a task on all of them concurrently. A runtime may
// start fewer threads than requested, so a task gets the actual number.
using Task = void (*)(void* data, i64 thread, i64 threads);
using RunOnThreads = void (*)(Task task, void* data, i64 threads);

i64 get_num_threads();
void set_num_threads(i64 threads);
RunOnThreads run_on_threads();

// Call f(first, last) for slices that cover begin .. end, on several threads if the range is longer than `grain`.
template <class F>
void parallel_for(i64 begin, i64 end, i64 grain, const F& f) {
  const i64 size = end - begin;
  if (size <= 0) return;
  const i64 max_threads = (size + grain - 1) / grain;
  const i64 threads = max_threads < get_num_threads() ? max_threads : get_num_threads();
  if (threads <= 1) {
    f(begin, end);
    return;
  }
  struct Shared {
    const F& f;
    i64 begin, size;
    std::exception_ptr error = nullptr;
    std::atomic<bool> failed{false};
  } shared{f, begin, size};
  const Task task = [](void* data, i64 thread, i64 actual) {
    Shared& s = *static_cast<Shared*>(data);
    try {
      s.f(s.begin + s.size * thread / actual, s.begin + s.size * (thread + 1) / actual);
    } catch (...) {
      if (!s.failed.exchange(true)) s.error = std::current_exception();
    }
  };
  run_on_threads()(task, &shared, threads);
  if (shared.error) std::rethrow_exception(shared.error);
}

// The operators; their schemas are in native.py.
void feedback_forward(Arguments& arguments);
void feedback_backward(Arguments& arguments);
void staircase_forward(Arguments& arguments);
void staircase_backward(Arguments& arguments);
void logsumexp(Arguments& arguments);
void topk(Arguments& arguments);
void delta_forward(Arguments& arguments);
void delta_backward(Arguments& arguments);

// A program is a model's step (see step.h), a session the buffers of its streams, which must be freed before it. Their
// arguments are written in decode/native.py.
void* decode_program_new(bool float64, Arguments& arguments);
void decode_program_free(void* program);
void* decode_session_new(void* program);
void decode_session_set_buffers(void* session, Arguments& arguments);
void decode_session_step(void* session, Arguments& arguments);
void decode_session_free(void* session);

}  // namespace stairwell
