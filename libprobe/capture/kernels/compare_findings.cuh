// compare_findings.cuh: how far the elements of a replay are from the expected ones, found by all
// blocks of a comparison and added up by the leaf. The numbers are those of
// daemon/core/numerics/compare.cpp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/kernels/direct_replay.cuh"
#include "libprobe/capture/kernels/element_types.cuh"

namespace cgdebug::capture {

inline constexpr std::uint64_t kNoIndex = ~std::uint64_t{0};

// The greatest of some values: the first of equals, and NaN above all.
template <typename Value>
struct Greatest {
  Value value = 0;
  std::uint64_t index = kNoIndex;

  __device__ void Add(Value other, std::uint64_t at) {
    if (at == kNoIndex) return;
    const bool is_nan = value != value, other_is_nan = other != other;
    const bool wins = index == kNoIndex          ? true
                      : is_nan != other_is_nan   ? other_is_nan
                      : is_nan || value == other ? at < index
                                                 : other > value;
    if (!wins) return;
    value = other;
    index = at;
  }
};

template <typename Type>
struct Findings {
  using Raw = typename Type::Raw;
  static constexpr bool kInt64 = !Type::kFloating && sizeof(Raw) == 8;
  static constexpr bool kFloat32 = Type::kFloating && sizeof(Raw) == 4;
  using Wide = std::conditional_t<kInt64, std::int64_t, double>;
  using Abs = std::conditional_t<kInt64, std::uint64_t, double>;

  std::uint64_t mismatched = 0;
  std::uint64_t first = kNoIndex;
  Greatest<Abs> max_abs;
  Greatest<double> max_rel;

  // An element that is not close to the expected one.
  __device__ void AddElement(Raw a, Raw b, std::uint64_t index, bool scalar) {
    ++mismatched;
    first = index < first ? index : first;
    Abs difference = Difference(Widen(a), Widen(b));
    if constexpr (kFloat32) {
      if (!scalar) difference = ToFloat32Precision(difference);
    }
    double ratio = __ddiv_rn(static_cast<double>(difference), Magnitude(Widen(b)));
    if ((kFloat32 || !Type::kFloating) && !scalar) ratio = ToFloat32Precision(ratio);
    max_abs.Add(difference, index);
    max_rel.Add(ratio, index);
  }

  __device__ void Add(const Findings& other) {
    mismatched += other.mismatched;
    first = other.first < first ? other.first : first;
    max_abs.Add(other.max_abs.value, other.max_abs.index);
    max_rel.Add(other.max_rel.value, other.max_rel.index);
  }

  __device__ static Wide Widen(Raw raw) {
    if constexpr (Type::kFloating) {
      // Get() is for finite elements, and does not know the NaN of float8_e4m3fn.
      if (Type::NonFinite(raw) && Type::IsNan(raw)) return __longlong_as_double(0x7ff8000000000000);
      return static_cast<double>(Type::Get(raw));
    } else {
      return static_cast<Wide>(raw);
    }
  }
  __device__ static double Difference(double a, double b) { return fabs(__dsub_rn(a, b)); }
  __device__ static std::uint64_t Difference(std::int64_t a, std::int64_t b) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return a > b ? x - y : y - x;
  }
  __device__ static double Magnitude(double value) { return fabs(value); }
  __device__ static double Magnitude(std::int64_t value) {
    return __ull2double_rn(Difference(value, std::int64_t{0}));
  }
  __device__ static double ToFloat32Precision(double difference) {
    const float rounded = __double2float_rn(difference);
    const bool kept = isfinite(rounded) && (rounded != 0 || difference == 0);
    return kept ? static_cast<double>(rounded) : difference;
  }
  __device__ static std::uint64_t BitsOf(double value) {
    return static_cast<std::uint64_t>(__double_as_longlong(value));
  }
  __device__ static std::uint64_t BitsOf(std::uint64_t value) { return value; }

  __device__ CompareFinding Packed(std::uint64_t replay) const {
    return {replay,        mismatched,
            first,         BitsOf(max_abs.value),
            max_abs.index, BitsOf(max_rel.value),
            max_rel.index, 0};
  }
  __device__ static Findings Unpacked(const CompareFinding& packed) {
    Findings found;
    found.mismatched = packed.mismatched;
    found.first = packed.first;
    if constexpr (kInt64) {
      found.max_abs.value = packed.max_abs;
    } else {
      found.max_abs.value = __longlong_as_double(static_cast<long long>(packed.max_abs));
    }
    found.max_abs.index = packed.max_abs_index;
    found.max_rel.value = __longlong_as_double(static_cast<long long>(packed.max_rel));
    found.max_rel.index = packed.max_rel_index;
    return found;
  }
};

// Every thread of the block calls it; thread 0 gets the sum. `shared` has one place per warp.
template <typename Type>
__device__ Findings<Type> ReduceInBlock(Findings<Type> mine, CompareFinding* shared) {
  const auto add_warp = [&] {
    for (int offset = 16; offset > 0; offset /= 2) {
      CompareFinding other = mine.Packed(0);
      auto* words = reinterpret_cast<std::uint64_t*>(&other);
#pragma unroll
      for (unsigned i = 0; i < sizeof(other) / sizeof(*words); ++i) {
        words[i] = __shfl_down_sync(0xffffffffu, words[i], offset);
      }
      // The last lanes get their own values once more, and nobody looks at what they have.
      mine.Add(Findings<Type>::Unpacked(other));
    }
  };
  add_warp();
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine.Packed(0);
  __syncthreads();
  if (threadIdx.x >= 32) return mine;
  mine = threadIdx.x < blockDim.x / 32 ? Findings<Type>::Unpacked(shared[threadIdx.x])
                                       : Findings<Type>();
  add_warp();
  return mine;
}

template <typename Raw>
__device__ std::uint64_t ElementBits(const std::byte* elements, std::uint64_t index) {
  static_assert(sizeof(Raw) <= 8);
  using Bits = std::conditional_t<
      sizeof(Raw) == 1, std::uint8_t,
      std::conditional_t<sizeof(Raw) == 2, std::uint16_t,
                         std::conditional_t<sizeof(Raw) == 4, std::uint32_t, std::uint64_t>>>;
  return reinterpret_cast<const Bits*>(elements)[index];
}

// Writes what the blocks of the comparison have found in `replay`. Every thread of one block of the
// leaf calls it. Requires: no replay before this one has failed.
template <typename Type>
__device__ __noinline__ void TellFailure(const DirectSlot& slot, std::uint64_t replay,
                                         const std::byte* staging) {
  __shared__ CompareFinding shared[kLeafThreads / 32];
  const CompareState& state = *slot.compare;
  Findings<Type> mine;
  for (std::uint64_t i = threadIdx.x; i < state.finding_count; i += blockDim.x) {
    if (state.findings[i].replay != replay) continue;
    mine.Add(Findings<Type>::Unpacked(state.findings[i]));
  }
  mine = ReduceInBlock<Type>(mine, shared);
  if (threadIdx.x != 0) return;
  const CompareFinding found = mine.Packed(replay);
  layout::SlotFailure& failure = *slot.failure;
  Store(failure.replay, replay);
  Store(failure.mismatched, found.mismatched);
  Store(failure.first, found.first);
  Store(failure.actual, ElementBits<typename Type::Raw>(staging, found.first));
  Store(failure.expected, ElementBits<typename Type::Raw>(state.expected, found.first));
  Store(failure.max_abs, found.max_abs);
  Store(failure.max_abs_index, found.max_abs_index);
  Store(failure.max_rel, found.max_rel);
  Store(failure.max_rel_index, found.max_rel_index);
  __threadfence_system();
  Store(failure.order, slot.order);  // X1, pairs with X2
}

}  // namespace cgdebug::capture
