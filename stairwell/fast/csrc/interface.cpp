// The functions that native.py calls through ctypes, and the threads on which kernels run.
#include "interface.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#if !defined(_WIN32)
#include <unistd.h>
#endif

#include "instruction_sets.h"

namespace stairwell {
namespace {

// Version of the operators' argument lists. native.py rejects a library with another version.
constexpr i64 LAYOUT_VERSION = 15;

thread_local i64 num_threads = 1;
thread_local std::string error;

// Functions of the OpenMP runtime that torch has loaded. A second pool of threads would compete with its threads.
struct OpenMP {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags) = nullptr;  // GOMP_parallel
  int (*thread)() = nullptr;                                                            // omp_get_thread_num
  int (*threads)() = nullptr;                                                           // omp_get_num_threads
} openmp;  // set when the library is loaded, before any call

void run_on_openmp(Task task, void* data, i64 threads) {
  struct Shared {
    Task task;
    void* data;
  } shared{task, data};
  const auto run = [](void* pointer) {
    const Shared& s = *static_cast<Shared*>(pointer);
    s.task(s.data, openmp.thread(), openmp.threads());
  };
  openmp.parallel(run, &shared, static_cast<unsigned>(threads), 0);
}

// Thread pool used without OpenMP. One call uses it at a time; concurrent calls run on their own thread.
class Pool {
 public:
  void run(Task task, void* data, i64 threads) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return task(data, 0, 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (static_cast<i64>(workers_) < threads - 1) {
        std::thread(&Pool::work, this, workers_).detach();
        ++workers_;
      }
      task_ = task;
      data_ = data;
      extra_threads_ = threads - 1;
      pending_ = threads - 1;
      ++round_;
    }
    wake_.notify_all();
    task(data, 0, threads);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return pending_ == 0; });
  }

 private:
  void work(i64 index) {
    i64 round = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return round_ != round; });
      round = round_;
      if (index >= extra_threads_) continue;
      const Task task = task_;
      void* const data = data_;
      const i64 threads = extra_threads_ + 1;
      lock.unlock();
      task(data, index + 1, threads);
      lock.lock();
      if (--pending_ == 0) done_.notify_all();
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_, done_;
  i64 workers_ = 0, extra_threads_ = 0, pending_ = 0, round_ = 0;
  Task task_ = nullptr;
  void* data_ = nullptr;
};

void run_on_pool(Task task, void* data, i64 threads) {
  // Threads do not survive a fork, so a forked process creates its own pool. Pools are never destroyed because their
  // threads may outlive the static objects of the process.
  static std::mutex mutex;
  static Pool* pool = nullptr;
  static i64 owner = -1;
#if defined(_WIN32)
  const i64 process = 0;
#else
  const i64 process = static_cast<i64>(getpid());
#endif
  Pool* own_pool;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (owner != process) {
      pool = new Pool;
      owner = process;
    }
    own_pool = pool;
  }
  own_pool->run(task, data, threads);
}

struct Operator {
  const char* name;
  void (*run)(Arguments&);
};

constexpr Operator OPERATORS[] = {
    {"feedback_forward", feedback_forward},   {"feedback_backward", feedback_backward},
    {"staircase_forward", staircase_forward}, {"staircase_backward", staircase_backward},
    {"logsumexp", logsumexp},                   {"topk", topk},
    {"delta_forward", delta_forward},         {"delta_backward", delta_backward},
};

}  // namespace

i64 get_num_threads() { return num_threads; }
void set_num_threads(i64 threads) { num_threads = threads < 1 ? 1 : threads; }
RunOnThreads run_on_threads() { return openmp.parallel ? run_on_openmp : run_on_pool; }

}  // namespace stairwell

#define STAIRWELL_EXPORT extern "C" __attribute__((visibility("default")))

STAIRWELL_EXPORT int64_t stairwell_layout() { return stairwell::LAYOUT_VERSION; }

STAIRWELL_EXPORT int64_t stairwell_best_instruction_set() { return stairwell::best_instruction_set(); }

// Return whether n elements of the given size at the given addresses equal the expected ones.
STAIRWELL_EXPORT int64_t stairwell_equal_elements(const char* const* addresses, int64_t n, int64_t size,
                                                  const char* expected) {
  bool equal = true;  // no early return: the processor reads many addresses at once
  for (int64_t i = 0; i < n; ++i) equal &= std::memcmp(addresses[i], expected + i * size, size) == 0;
  return equal;
}

// Use the threads of an OpenMP runtime, given the addresses of GOMP_parallel, omp_get_thread_num and
// omp_get_num_threads. Null selects the library's own pool. Do not call this while other calls run.
STAIRWELL_EXPORT void stairwell_use_openmp(void* parallel, void* thread, void* threads) {
  using stairwell::openmp;
  openmp.parallel = reinterpret_cast<decltype(openmp.parallel)>(parallel);
  openmp.thread = reinterpret_cast<decltype(openmp.thread)>(thread);
  openmp.threads = reinterpret_cast<decltype(openmp.threads)>(threads);
}

namespace stairwell {
namespace {

// Return null, or the message of the exception that `run` throws. It is valid until the thread's next call.
template <class F>
const char* guarded(F run) {
  try {
    run();
    return nullptr;
  } catch (const std::bad_alloc&) {
    error = "stairwell: out of memory";
  } catch (const std::exception& problem) {
    error = problem.what();
  }
  return error.c_str();
}

}  // namespace
}  // namespace stairwell

// Arguments of a call, one array per type (see Arguments).
struct CallArguments {
  const int64_t* integers;
  int64_t n_integers;
  const double* floats;
  int64_t n_floats;
  const stairwell::Tensor* tensors;
  int64_t n_tensors;

  stairwell::Arguments read() const {
    return {integers, n_integers, floats, n_floats, tensors, n_tensors};
  }
};

// Run an operator. All functions below return null or an error message.
STAIRWELL_EXPORT const char* stairwell_call(const char* name, int64_t threads, const CallArguments* packed) {
  using namespace stairwell;
  return guarded([&] {
    for (const Operator& op : OPERATORS) {
      if (std::strcmp(op.name, name) != 0) continue;
      set_num_threads(threads);
      Arguments arguments = packed->read();
      return op.run(arguments);
    }
    fail("stairwell: unknown operator ", name);
  });
}

STAIRWELL_EXPORT const char* stairwell_decode_program_new(void** program, int64_t float64, const CallArguments* packed) {
  return stairwell::guarded([&] {
    stairwell::Arguments arguments = packed->read();
    *program = stairwell::decode_program_new(float64, arguments);
  });
}

STAIRWELL_EXPORT void stairwell_decode_program_free(void* program) { stairwell::decode_program_free(program); }

STAIRWELL_EXPORT const char* stairwell_decode_session_new(void** session, void* program) {
  return stairwell::guarded([&] { *session = stairwell::decode_session_new(program); });
}

STAIRWELL_EXPORT const char* stairwell_decode_session_set_buffers(void* session, const CallArguments* packed) {
  return stairwell::guarded([&] {
    stairwell::Arguments arguments = packed->read();
    stairwell::decode_session_set_buffers(session, arguments);
  });
}

STAIRWELL_EXPORT const char* stairwell_decode_session_step(void* session, int64_t threads,
                                                           const CallArguments* packed) {
  return stairwell::guarded([&] {
    stairwell::set_num_threads(threads);
    stairwell::Arguments arguments = packed->read();
    stairwell::decode_session_step(session, arguments);
  });
}

STAIRWELL_EXPORT void stairwell_decode_session_free(void* session) { stairwell::decode_session_free(session); }
