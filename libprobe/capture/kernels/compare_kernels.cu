// Compares a tensor with the expected one on the compute path, while it stages it.
//
// What is close is defined in daemon/core/numerics/compare.h, and both sides find the same, bit for
// bit. A replay in which all elements are close has passed, and no value leaves the GPU. Of the
// first one that has not, each block also says how far its elements are.
#include <cfloat>
#include <type_traits>

#include "libprobe/capture/kernels/compare_findings.cuh"
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/kernels/element_types.cuh"
#include "libprobe/capture/kernels/grid_overlap.cuh"

namespace cgdebug::capture {
namespace {

// A bool is true whatever its bits are, unless all are zero.
struct Bool : Integer<std::uint8_t> {};
template <typename Type>
inline constexpr bool kIsBool = std::is_same_v<Type, Bool>;

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
    if constexpr (kIsBool<Type>) {
      if ((a != 0) == (b != 0)) return true;
      a = a != 0;
      b = b != 0;
    }
    if constexpr (!Type::kFloating && sizeof(Raw) == 8) {
      return IsCloseInInt64(a, b);
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

  // A double does not hold the difference.
  __device__ bool IsCloseInInt64(std::int64_t a, std::int64_t b) const {
    using Of = Findings<Type>;
    const double allowed = __dadd_rn(args.atol, __dmul_rn(args.rtol, Of::Magnitude(b)));
    return allowed >= 0x1p64 || Of::Difference(a, b) <= __double2ull_rd(allowed);
  }

  // Each operation is rounded by itself, as on the CPU.
  __device__ bool IsCloseInDouble(double a, double b) const {
    const double allowed = __dadd_rn(args.atol, __dmul_rn(args.rtol, fabs(b)));
    const double difference = a == b ? 0 : fabs(__dsub_rn(a, b));
    return difference <= (allowed <= DBL_MAX ? allowed : DBL_MAX);
  }
};

// The leaf of the replay before this one has decided it.
__device__ bool TakesReference(const DirectState* state) {
  return *const_cast<const volatile std::uint64_t*>(&state->accepted) == 0;
}

// Stages the tensor and keeps it as the expected one.
template <typename Type>
__device__ void TakeReference(const CompareArgs& args) {
  using Raw = typename Type::Raw;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < args.count;
       i += stride) {
    const Raw element = reinterpret_cast<const Raw*>(args.from)[i];
    reinterpret_cast<Raw*>(args.to)[i] = element;
    reinterpret_cast<Raw*>(args.expected)[i] = element;
  }
}

// Adds those of `count` elements from `index` on that are not close.
template <typename Type>
__device__ __noinline__ void AddElements(const CompareArgs& args, std::uint64_t index,
                                         std::uint64_t count, Findings<Type>* findings) {
  using Raw = typename Type::Raw;
  const Judge<Type> judge{args};
  for (const std::uint64_t end = index + count; index < end; ++index) {
    Raw a = reinterpret_cast<const Raw*>(args.from)[index];
    Raw b = reinterpret_cast<const Raw*>(args.expected)[index];
    if (judge.IsClose(a, b)) continue;
    if constexpr (kIsBool<Type>) {
      a = a != 0;
      b = b != 0;
    }
    findings->AddElement(a, b, index, args.scalar);
  }
}

template <typename Type>
__global__ void __launch_bounds__(kCompareThreads)
    Compare(const __grid_constant__ CompareArgs args) {
  using Raw = typename Type::Raw;
  constexpr std::uint64_t kPerVector = 16 / sizeof(Raw);
  __shared__ CompareFinding shared[kCompareThreads / 32];
  // Decided by the replay before this one, so there is nothing to wait for.
  const std::uint32_t skip = *const_cast<const volatile std::uint32_t*>(&args.state->next.skip);
  const bool takes = args.first && TakesReference(args.state);
  WaitForGridsBefore();
  if (skip != 0) return;
  if (takes) {
    TakeReference<Type>(args);
    return;
  }
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
  if (__syncthreads_or(!all_close) == 0) return;
  if (threadIdx.x == 0) *const_cast<volatile std::uint32_t*>(&args.state->now.differs) = 1;
  if (*const_cast<const volatile std::uint64_t*>(&args.compare->failed) != 0) return;
  // Rare: a second look at what this thread has read.
  Findings<Type> mine;
  if (!all_close) {
    for (std::uint64_t i = start; i < vector_count; i += stride) {
      AddElements<Type>(args, i * kPerVector, kPerVector, &mine);
    }
    for (std::uint64_t i = vector_count * kPerVector + start; i < args.count; i += stride) {
      AddElements<Type>(args, i, 1, &mine);
    }
  }
  mine = ReduceInBlock<Type>(mine, shared);
  if (threadIdx.x != 0) return;
  const std::uint64_t before = *const_cast<const volatile std::uint64_t*>(&args.state->replay);
  args.compare->findings[blockIdx.x] = mine.Packed(before + 1);
}

template <typename Type>
struct CompareOf {
  static const void* Get() { return reinterpret_cast<const void*>(&Compare<Type>); }
};

}  // namespace

const void* CompareKernel(layout::Dtype dtype) {
  return dtype == layout::Dtype::kBool ? CompareOf<Bool>::Get() : KernelForDtype<CompareOf>(dtype);
}

}  // namespace cgdebug::capture
