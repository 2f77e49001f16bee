// The kernels for any processor.
#include <cmath>
#include <cstring>

#include "plan.h"

#define STAIRWELL_ISA generic
#define STAIRWELL_BYTES 16
#define STAIRWELL_AVX2 0

namespace stairwell {
namespace STAIRWELL_ISA {
#include "kernels.h"
}  // namespace STAIRWELL_ISA

template <> const Kernels<float>& kernels_generic() { return generic::kernels<float>(); }
template <> const Kernels<double>& kernels_generic() { return generic::kernels<double>(); }
}  // namespace stairwell
