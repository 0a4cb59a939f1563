#include "daemon/numerics/compare_kernel.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "daemon/numerics/cpu.h"
#include "daemon/numerics/decode.h"
#include "daemon/numerics/ordered_key.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/numerics/compare_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "daemon/numerics/lanes-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

// Elements side by side in lanes of 32 bits, double in lanes of 64: as places on the dtype's own
// grid, and as values (float, or int32 for integers).
template <typename T>
using Place = std::conditional_t<std::is_same_v<T, double>, std::int64_t, std::int32_t>;
template <typename T>
using Value = std::conditional_t<std::is_same_v<T, double>, double,
                                 std::conditional_t<kIsFloatingElement<T>, float, std::int32_t>>;
template <typename T>
using PlaceTag = hn::ScalableTag<Place<T>>;
template <typename T>
using ValueTag = hn::ScalableTag<Value<T>>;

template <typename T>
HWY_INLINE hn::Vec<PlaceTag<T>> LoadBits(const Lane<T>* HWY_RESTRICT p) {
  const PlaceTag<T> d;
  if constexpr (sizeof(T) == sizeof(Place<T>)) {
    return hn::LoadU(d, reinterpret_cast<const Place<T>*>(p));
  } else {
    const auto bits = hn::PromoteTo(d, hn::LoadU(hn::Rebind<Lane<T>, PlaceTag<T>>(), p));
    if constexpr (std::is_same_v<T, Bool8>) return hn::Min(bits, hn::Set(d, 1));
    return bits;
  }
}

// As UlpDistance() has it: both zeros at 0, -x opposite to x.
template <typename T>
HWY_INLINE hn::Vec<PlaceTag<T>> PlaceOf(hn::Vec<PlaceTag<T>> bits) {
  const PlaceTag<T> d;
  if constexpr (kIsFloatingElement<T>) {
    const auto sign = hn::BroadcastSignBit(bits);
    const auto magnitude =
        hn::And(bits, hn::Set(d, static_cast<Place<T>>(OrderedKey<T>::kMagnitude)));
    return hn::Sub(hn::Xor(magnitude, sign), sign);
  } else {
    return bits;
  }
}

template <typename T>
HWY_INLINE hn::Vec<ValueTag<T>> ValueOf(const Lane<T>* HWY_RESTRICT p, hn::Vec<PlaceTag<T>> bits) {
  const ValueTag<T> d;
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Float8E4m3fn> ||
                std::is_same_v<T, Float8E5m2>) {
    auto value = DecodePart<T, 0>(p);
    if constexpr (std::is_same_v<T, Float8E4m3fn>) {
      const auto is_nan = hn::Gt(hn::Abs(value), hn::Set(d, 448.0f));
      value = hn::IfThenElse(is_nan, hn::Set(d, std::numeric_limits<float>::quiet_NaN()), value);
    }
    return value;
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  } else {
    (void)p;
    return hn::BitCast(d, bits);
  }
}

// A bound on |a - b| in the value's own type that no pair beyond the tolerance passes. Most pairs
// of a passing comparison pass it; the others are looked at in double.
template <typename T>
class SureBound {
 public:
  explicit SureBound(const CompareOptions& options) {
    constexpr double kMargin = 1 - 0x1p-20;
    constexpr double kMax = std::numeric_limits<float>::max();
    if constexpr (std::is_same_v<Value<T>, float>) {
      atol_ = static_cast<float>(std::min(options.atol * kMargin, kMax)) - 0x1p-120f;
      rtol_ = static_cast<float>(std::min(options.rtol * kMargin, kMax));
    } else {
      atol_ = static_cast<Value<T>>(std::min(options.atol, 0x1p30));
    }
  }

  // Lanes that may be out of tolerance.
  HWY_INLINE hn::Vec<ValueTag<T>> Unsure(hn::Vec<ValueTag<T>> a, hn::Vec<ValueTag<T>> b,
                                         hn::Vec<PlaceTag<T>> distance) const {
    const ValueTag<T> d;
    if constexpr (std::is_same_v<Value<T>, float>) {
      (void)distance;
      auto bound = hn::MulAdd(hn::Set(d, rtol_), hn::Abs(b), hn::Set(d, atol_));
      bound = hn::Min(hn::Max(bound, hn::Zero(d)), hn::Set(d, std::numeric_limits<float>::max()));
      return hn::VecFromMask(d, hn::Not(hn::Le(hn::Abs(hn::Sub(a, b)), bound)));
    } else {  // a distance beyond int32 is negative
      const auto far = hn::Or(hn::Gt(distance, hn::Set(d, atol_)), hn::Lt(distance, hn::Zero(d)));
      return hn::VecFromMask(d, far);
    }
  }

 private:
  Value<T> atol_ = 0;
  Value<T> rtol_ = 0;
};

// --- distances -----------------------------------------------------------------------------------

template <typename T>
void CountDistances(const hwy::MakeUnsigned<Place<T>>* HWY_RESTRICT distances, std::size_t count,
                    hwy::MakeUnsigned<Place<T>> greatest, BlockComparison* block) {
  using Distance = hwy::MakeUnsigned<Place<T>>;
  const hn::ScalableTag<Distance> d;
  const hn::RebindToSigned<decltype(d)> counters;
  constexpr std::size_t kManyBins = 12, kFewBins = 4;
  const std::size_t last = UlpBin(greatest);
  const std::size_t counted = last > kManyBins ? kFewBins : last;
  std::uint64_t above = count;
  for (std::size_t bin = 0; bin <= counted; ++bin) {  // how many lie beyond it
    const auto end = hn::Set(d, static_cast<Distance>(UlpBinEnd(bin)));
    auto beyond = hn::Zero(counters);
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const auto is_beyond = hn::Gt(hn::Load(d, distances + i), end);
      beyond = hn::Sub(beyond, hn::BitCast(counters, hn::VecFromMask(d, is_beyond)));
    }
    const std::uint64_t left = bin == last ? 0 : CountOf(beyond);
    block->ulp[bin] += above - left;
    above = left;
  }
  if (above == 0) return;
  // The far ones one by one. Four tables: an increment waits for the one before it of its counter.
  std::uint32_t tables[4][kUlpBins] = {};
  const auto end = hn::Set(d, static_cast<Distance>(UlpBinEnd(counted)));
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    if (hn::AllFalse(d, hn::Gt(hn::Load(d, distances + i), end))) continue;
    for (std::size_t lane = 0; lane < hn::Lanes(d); ++lane) {
      ++tables[lane % 4][UlpBin(distances[i + lane])];
    }
  }
  for (std::size_t bin = counted + 1; bin <= last; ++bin) {
    for (const auto& table : tables) block->ulp[bin] += table[bin];
  }
}

// --- the tolerance, in double
// ----------------------------------------------------------------------

using DoubleTag = hn::ScalableTag<double>;
using Doubles = hn::Vec<DoubleTag>;

// To the precision that torch prints, unless that loses the number (ToFloat32Precision()).
HWY_INLINE Doubles RoundToFloat(Doubles x) {
  const DoubleTag d;
  const auto rounded = hn::PromoteTo(d, hn::DemoteTo(hn::Rebind<float, DoubleTag>(), x));
  const auto is_lost = hn::Or(hn::Not(hn::Le(hn::Abs(rounded), hn::Set(d, 0x1.fffffep127))),
                              hn::Eq(rounded, hn::Zero(d)));
  return hn::IfThenElse(is_lost, x, rounded);
}

constexpr std::size_t kGroup = 64;  // elements of one word of mismatches

template <typename T>
class Judge {
 public:
  Judge(const CompareOptions& options, BlockComparison* block) : options_(options), block_(block) {}

  // A group that begins at element `first`.
  void Group(const Lane<T>* HWY_RESTRICT a, const Lane<T>* HWY_RESTRICT b, std::size_t first,
             std::size_t size) {
    const DoubleTag d;
    const ValueTag<T> dv;
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < size; i += hn::Lanes(dv)) {
      const auto x = ValueOf<T>(a + i, LoadBits<T>(a + i));
      const auto y = ValueOf<T>(b + i, LoadBits<T>(b + i));
      if constexpr (std::is_same_v<T, double>) {
        word |= Look(x, y) << i;
      } else {
        const hn::Half<ValueTag<T>> half;
        word |=
            Look(hn::PromoteTo(d, hn::LowerHalf(half, x)), hn::PromoteTo(d, hn::LowerHalf(half, y)))
            << i;
        word |=
            Look(hn::PromoteTo(d, hn::UpperHalf(half, x)), hn::PromoteTo(d, hn::UpperHalf(half, y)))
            << (i + hn::Lanes(d));
      }
    }
    block_->mismatch[first / kGroup] = word;
    block_->mismatched += static_cast<std::uint64_t>(std::popcount(word));
  }

  void Finish() {
    const DoubleTag d;
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    const auto greater = [](double x, double y) { return std::max(x, y); };
    block_->mismatched_zero = CountOf(hn::BitCast(counters_, zero_));
    block_->mismatched_greater = CountOf(hn::BitCast(counters_, greater_));
    block_->max_abs = Fold(d, max_abs_, 0.0, greater);
    block_->max_rel = Fold(d, max_rel_, 0.0, greater);
    if (!hn::AllFalse(d, hn::MaskFromVec(nan_abs_))) block_->max_abs = kNan;
    if (!hn::AllFalse(d, hn::MaskFromVec(nan_rel_))) block_->max_rel = kNan;
  }

 private:
  // Bit i: element i is a mismatch.
  HWY_INLINE std::uint64_t Look(Doubles a, Doubles b) {
    const DoubleTag d;
    const auto zero = hn::Zero(d);
    auto allowed =
        hn::Add(hn::Set(d, options_.atol), hn::Mul(hn::Set(d, options_.rtol), hn::Abs(b)));
    allowed = hn::Min(allowed, hn::Set(d, std::numeric_limits<double>::max()));
    auto difference = hn::IfThenElse(hn::Eq(a, b), zero, hn::Abs(hn::Sub(a, b)));
    auto wrong = hn::Not(hn::Le(difference, allowed));
    if constexpr (kIsFloatingElement<T>) {
      const auto nan_a = hn::IsNaN(a), nan_b = hn::IsNaN(b);
      if (!hn::AllFalse(d, hn::Or(nan_a, nan_b))) {
        block_->nan_in_actual += hn::CountTrue(d, hn::AndNot(nan_b, nan_a));
        block_->nan_in_expected += hn::CountTrue(d, hn::AndNot(nan_a, nan_b));
        if (options_.equal_nan) wrong = hn::AndNot(hn::And(nan_a, nan_b), wrong);
      }
    }
    if (hn::AllFalse(d, wrong)) return 0;
    const auto count = [&](auto& counter, auto mask) HWY_ATTR {
      const auto one = hn::BitCast(counters_, hn::VecFromMask(d, hn::And(wrong, mask)));
      counter = hn::Sub(counter, one);
    };
    count(zero_, hn::Eq(a, zero));
    count(greater_, hn::Gt(a, b));
    if constexpr (std::is_same_v<T, float>) difference = RoundToFloat(difference);
    auto ratio = hn::Div(difference, hn::Abs(b));
    if constexpr (std::is_same_v<T, float> || !kIsFloatingElement<T>) ratio = RoundToFloat(ratio);
    Raise(hn::IfThenElseZero(wrong, difference), &max_abs_, &nan_abs_);
    Raise(hn::IfThenElseZero(wrong, ratio), &max_rel_, &nan_rel_);
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(d, wrong, bits);
    return bits[0];
  }

  HWY_INLINE static void Raise(Doubles x, Doubles* max, Doubles* nan) {
    const DoubleTag d;
    *nan = hn::Or(*nan, hn::VecFromMask(d, hn::IsNaN(x)));
    *max = hn::Max(hn::IfThenElse(hn::IsNaN(x), hn::Zero(d), x), *max);
  }

  const CompareOptions& options_;
  BlockComparison* block_;
  hn::ScalableTag<std::int64_t> counters_;
  hn::Vec<hn::ScalableTag<std::int64_t>> zero_ = hn::Zero(counters_), greater_ = zero_;
  Doubles max_abs_ = hn::Zero(DoubleTag()), max_rel_ = max_abs_, nan_abs_ = max_abs_,
          nan_rel_ = max_abs_;
};

template <typename T>
bool CompareBlockOf(const Lane<T>* HWY_RESTRICT a, const Lane<T>* HWY_RESTRICT b, std::size_t count,
                    const CompareOptions& options, BlockComparison* block) {
  using Distance = hwy::MakeUnsigned<Place<T>>;
  const ValueTag<T> d;
  const PlaceTag<T> dp;
  const hn::ScalableTag<Distance> du;
  const std::size_t lanes = hn::Lanes(d);
  if (count % lanes != 0) return false;
  HWY_ALIGN Distance distances[kCompareBlock];
  const SureBound<T> bound(options);
  Judge<T> judge(options, block);
  auto greatest = hn::Zero(du);
  for (std::size_t first = 0; first < count; first += kGroup) {
    const std::size_t size = std::min(kGroup, count - first);
    auto unsure = hn::Zero(d);
    for (std::size_t i = first; i < first + size; i += lanes) {
      const auto bits_a = LoadBits<T>(a + i), bits_b = LoadBits<T>(b + i);
      const auto place_a = PlaceOf<T>(bits_a), place_b = PlaceOf<T>(bits_b);
      auto distance = hn::Sub(hn::Max(place_a, place_b), hn::Min(place_a, place_b));
      const auto x = ValueOf<T>(a + i, bits_a), y = ValueOf<T>(b + i, bits_b);
      if constexpr (!std::is_same_v<T, double>) {
        unsure = hn::Or(unsure, bound.Unsure(x, y, distance));
      }
      if constexpr (kIsFloatingElement<T>) {  // with NaN there is no distance
        const auto unordered = hn::VecFromMask(d, hn::Or(hn::IsNaN(x), hn::IsNaN(y)));
        distance = hn::AndNot(hn::BitCast(dp, unordered), distance);
      }
      greatest = hn::Max(greatest, hn::BitCast(du, distance));
      hn::Store(hn::BitCast(du, distance), du, distances + i);
    }
    if (std::is_same_v<T, double> || !hn::AllFalse(d, hn::MaskFromVec(unsure))) {
      judge.Group(a + first, b + first, first, size);
    }
  }
  judge.Finish();
  const auto most =
      Fold(du, greatest, Distance{0}, [](Distance x, Distance y) { return std::max(x, y); });
  CountDistances<T>(distances, count, most, block);
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
    if constexpr (kIsFloatingElement<T>) {
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
    if constexpr (std::is_same_v<T, std::int64_t>) {
      return false;  // more than a double holds
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
