#include "daemon/core/numerics/kernels/compare_kernel.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "daemon/core/numerics/kernels/cpu.h"
#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/numerics/kernels/ordered_key.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/core/numerics/kernels/compare_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "daemon/core/numerics/kernels/lanes-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
// After lanes-inl.h.
#include "daemon/core/numerics/kernels/judge-inl.h"
#include "daemon/core/numerics/kernels/ulp_counts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

// A NaN has no distance to anything: it was counted as 0, and is subtracted again here.
template <typename T>
HWY_INLINE void ForgetNan(const Lane<T>* HWY_RESTRICT a, const Lane<T>* HWY_RESTRICT b,
                          std::size_t size, hwy::MakeUnsigned<Place<T>>* HWY_RESTRICT distances) {
  const ValueTag<T> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  for (std::size_t i = 0; i < size; i += hn::Lanes(d)) {
    const auto x = ValueOf<T>(a + i, LoadBits<T>(a + i)), y = ValueOf<T>(b + i, LoadBits<T>(b + i));
    const auto unordered = hn::VecFromMask(d, hn::Or(hn::IsNaN(x), hn::IsNaN(y)));
    const auto distance = hn::Load(du, distances + i);
    hn::Store(hn::AndNot(hn::BitCast(du, unordered), distance), du, distances + i);
  }
}

template <typename T>
bool CompareBlockOf(const Lane<T>* HWY_RESTRICT a, const Lane<T>* HWY_RESTRICT b, std::size_t count,
                    const CompareOptions& options, BlockComparison* block) {
  using Distance = hwy::MakeUnsigned<Place<T>>;
  const ValueTag<T> d;
  const hn::ScalableTag<Distance> du;
  const std::size_t lanes = hn::Lanes(d);
  if (count % lanes != 0) return false;
  HWY_ALIGN Distance distances[kCompareBlock];
  const SureBound<T> bound(options);
  Judge<T> judge(options, block);
  [[maybe_unused]] SureJudge sure_judge(options, block);
  auto greatest = hn::Zero(du);
  for (std::size_t first = 0; first < count; first += kGroup) {
    const std::size_t size = std::min(kGroup, count - first);
    auto sure = hn::Eq(hn::Zero(d), hn::Zero(d));
    for (std::size_t i = first; i < first + size; i += lanes) {
      const auto bits_a = LoadBits<T>(a + i), bits_b = LoadBits<T>(b + i);
      const auto place_a = PlaceOf<T>(bits_a), place_b = PlaceOf<T>(bits_b);
      const auto distance = hn::Sub(hn::Max(place_a, place_b), hn::Min(place_a, place_b));
      if constexpr (!std::is_same_v<T, double>) {
        const auto x = ValueOf<T>(a + i, bits_a), y = ValueOf<T>(b + i, bits_b);
        sure = hn::And(sure, bound.Sure(x, y, distance));
      }
      greatest = hn::Max(greatest, hn::BitCast(du, distance));
      hn::Store(hn::BitCast(du, distance), du, distances + i);
    }
    if (!std::is_same_v<T, double> && hn::AllTrue(d, sure)) continue;
    if constexpr (std::is_same_v<T, float>) {
      if (sure_judge.Group(a + first, b + first, first, size)) continue;
    }
    judge.Group(a + first, b + first, first, size);
    if constexpr (kIsFloatingElement<T>) {
      ForgetNan<T>(a + first, b + first, size, distances + first);
    }
  }
  judge.Finish();
  if constexpr (std::is_same_v<T, float>) sure_judge.Finish();
  const auto most =
      Fold(du, greatest, Distance{0}, [](Distance x, Distance y) { return std::max(x, y); });
  CountDistances(distances, count, most, block);
  block->ulp[0] -= block->nan_in_actual + block->nan_in_expected;
  return true;
}

template <typename T>
bool HasNanOf(const Lane<T>* HWY_RESTRICT p, std::size_t count) {
  using Bits = hwy::MakeSigned<Lane<T>>;
  using K = OrderedKey<T>;
  const hn::ScalableTag<Bits> d;
  constexpr auto kLast = std::is_same_v<T, Float8E4m3fn> ? K::kHighestFinite : K::kPosInf;
  const auto last = hn::Set(d, static_cast<Bits>(kLast));
  const auto magnitude = hn::Set(d, static_cast<Bits>(K::kMagnitude));
  auto found = hn::Zero(d);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto bits = hn::LoadU(d, reinterpret_cast<const Bits*>(p + i));
    found = hn::Or(found, hn::VecFromMask(d, hn::Gt(hn::And(bits, magnitude), last)));
  }
  if (!hn::AllFalse(d, hn::MaskFromVec(found))) return true;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(p), count * sizeof(T));
  for (; i < count; ++i) {
    if (K::IsNan(K::FromElement(LoadElement<T>(bytes, i)))) return true;
  }
  return false;
}

bool HasNan(layout::Dtype dtype, const std::byte* data, std::size_t count) {
  return VisitDtype(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if constexpr (kHasOneNan<T>) {
      return std::memchr(data, kNanBits<T>, count) != nullptr;
    } else if constexpr (kIsFloatingElement<T> && !kHoldsTwo<T>) {
      return HasNanOf<T>(reinterpret_cast<const Lane<T>*>(data), count);
    } else {
      return false;
    }
  });
}

bool CompareBlock(layout::Dtype dtype, const std::byte* actual, const std::byte* expected,
                  std::size_t count, const CompareOptions& options, BlockComparison* block) {
  if (options.bitwise) return false;
  return VisitDtype(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if constexpr (std::is_same_v<T, std::int64_t> || kHasOneNan<T> || kHoldsTwo<T>) {
      return false;  // an int64 is more than a double holds; the others are rare
    } else {
      return CompareBlockOf<T>(reinterpret_cast<const Lane<T>*>(actual),
                               reinterpret_cast<const Lane<T>*>(expected), count, options, block);
    }
  });
}

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace cgdebug::numerics {

CompareKernels ChosenCompareKernels() {
  switch (ChosenCpu()) {
#if HWY_TARGETS & HWY_AVX2
    case Cpu::kAvx512:
    case Cpu::kAvx2:
      return {N_AVX2::CompareBlock, N_AVX2::HasNan};
#endif
#if HWY_TARGETS & HWY_NEON
    case Cpu::kNeon:
      return {N_NEON::CompareBlock, N_NEON::HasNan};
#endif
    default:
      return {};
  }
}

}  // namespace cgdebug::numerics
#endif
