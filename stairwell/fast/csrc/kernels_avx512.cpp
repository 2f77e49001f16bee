// The kernels for AVX-512. Compiled on every x86-64 machine, called only if the processor supports them.
#include <cmath>
#include <cstring>

#include "plan.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define STAIRWELL_TARGET "avx2,fma,avx512f,avx512dq,avx512vl,avx512bw"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target(STAIRWELL_TARGET))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512vl,avx512bw")
#endif

#define STAIRWELL_ISA avx512
#define STAIRWELL_BYTES 64
#define STAIRWELL_AVX2 1

namespace stairwell {
namespace STAIRWELL_ISA {
#include "kernels.h"
}  // namespace STAIRWELL_ISA

template <> const Kernels<float>& kernels_avx512() { return avx512::kernels<float>(); }
template <> const Kernels<double>& kernels_avx512() { return avx512::kernels<double>(); }
}  // namespace stairwell

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
