// The kernels for AVX2 and FMA. Compiled on every x86-64 machine, called only if the processor supports them.
#include <cmath>
#include <cstring>

#include "plan.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#define STAIRWELL_ISA avx2
#define STAIRWELL_BYTES 32
#define STAIRWELL_AVX2 1

namespace stairwell {
namespace STAIRWELL_ISA {
#include "kernels.h"
}  // namespace STAIRWELL_ISA

template <> const Kernels<float>& kernels_avx2() { return avx2::kernels<float>(); }
template <> const Kernels<double>& kernels_avx2() { return avx2::kernels<double>(); }
}  // namespace stairwell

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
