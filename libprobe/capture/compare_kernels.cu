// Compares a tensor with the expected one on the compute path, while it stages it.
//
// The kernel only says whether every element is close for sure, by the definition of
// daemon/core/numerics/compare.h. If so, the replay has passed and no value leaves the GPU. If not,
// the leaf sends the values and the daemon compares them. So the kernel must never call an element
// close that the daemon does not; the other way round it costs time, but no verdict.
#include <cfloat>

#include "libprobe/capture/direct_kernels.h"
#include "libprobe/capture/element_types.cuh"
#include "libprobe/capture/grid_overlap.cuh"

namespace cgdebug::capture {
namespace {

template <typename Type>
struct Judge {
  using Raw = typename Type::Raw;
  const CompareArgs& args;

  __device__ bool IsClose(Raw a, Raw b) const {
    if constexpr (Type::kFloating) {
      if (!args.bitwise && (Type::NonFinite(a) || Type::NonFinite(b))) {
        const bool a_is_nan = Type::NonFinite(a) && Type::IsNan(a);
        const bool b_is_nan = Type::NonFinite(b) && Type::IsNan(b);
        if (a_is_nan || b_is_nan) return a_is_nan && b_is_nan && args.equal_nan;
        return a == b;  // an infinity is close to itself alone
      }
    }
    if (a == b) return true;
    if (args.bitwise) return false;
    if constexpr (!Type::kFloating && sizeof(Raw) == 8) {
      return false;  // a double does not hold the difference; the daemon computes it
    } else if constexpr (Type::kFloating && sizeof(Raw) < 8) {
      const float x = Type::Get(a), y = Type::Get(b);
      const float bound = fminf(__fmaf_rn(args.sure_rtol, fabsf(y), args.sure_atol), FLT_MAX);
      return fabsf(x - y) <= bound ||
             IsCloseInDouble(static_cast<double>(x), static_cast<double>(y));
    } else if constexpr (Type::kFloating) {
      return IsCloseInDouble(Type::Get(a), Type::Get(b));
    } else {
      return IsCloseInDouble(static_cast<double>(a), static_cast<double>(b));
    }
  }

  // Each operation is rounded by itself, as on the CPU.
  __device__ bool IsCloseInDouble(double a, double b) const {
    const double allowed = __dadd_rn(args.atol, __dmul_rn(args.rtol, fabs(b)));
    const double difference = a == b ? 0 : fabs(__dsub_rn(a, b));
    return difference <= (allowed <= DBL_MAX ? allowed : DBL_MAX);
  }
};

template <typename Type>
__global__ void __launch_bounds__(kCompareThreads)
    Compare(const __grid_constant__ CompareArgs args) {
  using Raw = typename Type::Raw;
  constexpr std::uint64_t kPerVector = 16 / sizeof(Raw);
  // Decided by the replay before this one, so there is nothing to wait for.
  const std::uint32_t skip = *const_cast<const volatile std::uint32_t*>(&args.state->skip);
  WaitForGridsBefore();
  if (skip != 0) return;
  const Judge<Type> judge{args};
  const std::uint64_t start = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  bool all_close = true;
  const std::uint64_t vector_count = args.vectors ? args.count / kPerVector : 0;
#pragma unroll 1
  for (std::uint64_t i = start; i < vector_count; i += stride) {
    union {
      uint4 whole;
      Raw raw[kPerVector];
    } a, b;
    a.whole = reinterpret_cast<const uint4*>(args.from)[i];
    b.whole = reinterpret_cast<const uint4*>(args.expected)[i];
    reinterpret_cast<uint4*>(args.to)[i] = a.whole;
#pragma unroll
    for (std::uint64_t k = 0; k < kPerVector; ++k) {
      all_close = judge.IsClose(a.raw[k], b.raw[k]) && all_close;
    }
  }
#pragma unroll 1
  for (std::uint64_t i = vector_count * kPerVector + start; i < args.count; i += stride) {
    const Raw a = reinterpret_cast<const Raw*>(args.from)[i];
    reinterpret_cast<Raw*>(args.to)[i] = a;
    all_close = judge.IsClose(a, reinterpret_cast<const Raw*>(args.expected)[i]) && all_close;
  }
  if (!all_close) *const_cast<volatile std::uint32_t*>(&args.state->differs) = 1;
}

template <typename Type>
struct CompareOf {
  static const void* Get() { return reinterpret_cast<const void*>(&Compare<Type>); }
};

}  // namespace

const void* CompareKernel(layout::Dtype dtype) { return KernelForDtype<CompareOf>(dtype); }

}  // namespace cgdebug::capture
