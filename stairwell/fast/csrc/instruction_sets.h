// The instruction sets that kernels are compiled for.
#pragma once

#include "interface.h"

namespace stairwell {

enum InstructionSet : i64 { GENERIC = 0, AVX2 = 1, AVX512 = 2 };

inline i64 best_instruction_set() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    return AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
  return GENERIC;
}

}  // namespace stairwell
