// judge-inl.h: whether elements are within the tolerance, and what to report about those that are
// not. Included once for each CPU, after lanes-inl.h. Internal to daemon/core/numerics.
#if defined(CGDEBUG_NUMERICS_JUDGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CGDEBUG_NUMERICS_JUDGE_INL_H_
#undef CGDEBUG_NUMERICS_JUDGE_INL_H_
#else
#define CGDEBUG_NUMERICS_JUDGE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "daemon/core/numerics/kernels/compare_kernel.h"
#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/numerics/kernels/ordered_key.h"

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

// As in UlpDistance(): both zeros at 0, -x opposite to x. Undefined for NaN.
template <typename T>
HWY_INLINE hn::Vec<PlaceTag<T>> PlaceOf(hn::Vec<PlaceTag<T>> bits) {
  if constexpr (kIsFloatingElement<T>) {
    const auto negative_zero =
        hn::Set(PlaceTag<T>(), ~static_cast<Place<T>>(OrderedKey<T>::kMagnitude));
    return hn::IfNegativeThenElse(bits, hn::Sub(negative_zero, bits), bits);
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

  // Lanes that are within the tolerance for sure; no NaN is.
  HWY_INLINE hn::Mask<ValueTag<T>> Sure(hn::Vec<ValueTag<T>> a, hn::Vec<ValueTag<T>> b,
                                        hn::Vec<PlaceTag<T>> distance) const {
    const ValueTag<T> d;
    if constexpr (std::is_same_v<Value<T>, float>) {
      (void)distance;
      auto bound = hn::MulAdd(hn::Set(d, rtol_), hn::Abs(b), hn::Set(d, atol_));
      bound = hn::Min(hn::Max(bound, hn::Zero(d)), hn::Set(d, std::numeric_limits<float>::max()));
      return hn::Le(hn::Abs(hn::Sub(a, b)), bound);
    } else {  // a distance beyond int32 is negative
      return hn::Not(hn::Or(hn::Gt(distance, hn::Set(d, atol_)), hn::Lt(distance, hn::Zero(d))));
    }
  }

 private:
  Value<T> atol_ = 0;
  Value<T> rtol_ = 0;
};

// --- the tolerance, in double --------------------------------------------------------------------

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
  Judge(const CompareOptions& options, BlockComparison* block)
      : options_(options),
        block_(block),
        zero_(hn::Zero(counters_)),
        greater_(hn::Zero(counters_)),
        max_abs_(hn::Zero(DoubleTag())),
        max_rel_(max_abs_),
        nan_abs_(max_abs_),
        nan_rel_(max_abs_) {}

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
    block_->mismatched_zero += CountOf(zero_);
    block_->mismatched_greater += CountOf(greater_);
    block_->max_abs = Fold(d, max_abs_, block_->max_abs, greater);
    block_->max_rel = Fold(d, max_rel_, block_->max_rel, greater);
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
  hn::Vec<hn::ScalableTag<std::int64_t>> zero_, greater_;
  Doubles max_abs_, max_rel_, nan_abs_, nan_rel_;
};

// Judges float32 at a fraction of the cost: float itself decides wherever it is sure. The printed
// difference is rounded to float, so a difference of floats will do.
class SureJudge {
 public:
  SureJudge(const CompareOptions& options, BlockComparison* block)
      : block_(block),
        within_(options),
        beyond_atol_(ToFloat(options.atol * kMargin) + kLeast),
        beyond_rtol_(ToFloat(options.rtol * kMargin)),
        ratio_(AtMost(block->max_rel_before)),
        zero_(hn::Zero(counters_)),
        greater_(hn::Zero(counters_)),
        max_abs_(hn::Zero(d_)) {}

  // False, with nothing done, where a pair is too close to the tolerance, or to the ends of the
  // range of float for ratios of floats.
  bool Group(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::size_t first,
             std::size_t size) {
    std::uint64_t word = 0;
    auto zero = zero_, greater = greater_;
    auto max_abs = max_abs_, rising = hn::Zero(d_);
    auto sure = hn::Eq(rising, rising);
    const auto ratio = hn::Set(d_, ratio_);
    const auto add_if = [&](auto& counter, auto mask) HWY_ATTR {
      counter = hn::Sub(counter, hn::BitCast(counters_, hn::VecFromMask(d_, mask)));
    };
    for (std::size_t i = 0; i < size; i += hn::Lanes(d_)) {
      const auto x = hn::LoadU(d_, a + i), y = hn::LoadU(d_, b + i);
      const auto difference = hn::Abs(hn::Sub(x, y)), magnitude = hn::Abs(y);
      const auto wrong = Beyond(difference, magnitude);
      const auto wrong_bits = hn::VecFromMask(d_, wrong);
      sure = hn::And(sure, hn::Or(wrong, within_.Sure(x, y, zero)));
      add_if(zero, hn::And(wrong, hn::Eq(x, hn::Zero(d_))));
      add_if(greater, hn::And(wrong, hn::Gt(x, y)));
      max_abs = hn::Max(max_abs, hn::And(wrong_bits, difference));
      // Rounded once, so above 0 wherever the quotient is above `ratio`.
      const auto excess = hn::NegMulAdd(ratio, magnitude, difference);
      const auto is_rising = hn::And(wrong, hn::Gt(excess, hn::Zero(d_)));
      rising = hn::Or(rising, hn::VecFromMask(d_, is_rising));
      std::uint8_t bits[8] = {};
      hn::StoreMaskBits(d_, wrong, bits);
      word |= std::uint64_t{bits[0]} << i;
    }
    if (!hn::AllTrue(d_, sure)) return false;
    zero_ = zero;
    greater_ = greater;
    max_abs_ = max_abs;
    block_->mismatch[first / kGroup] = word;
    block_->mismatched += static_cast<std::uint64_t>(std::popcount(word));
    if (!hn::AllFalse(d_, hn::MaskFromVec(rising))) RaiseRatio(a, b, size);
    return true;
  }

  void Finish() {
    const auto greater = [](double x, double y) { return std::max(x, y); };
    block_->mismatched_zero += CountOf(zero_);
    block_->mismatched_greater += CountOf(greater_);
    block_->max_abs = Fold(d_, max_abs_, block_->max_abs, greater);
    block_->max_rel = std::max(block_->max_rel, max_rel_);
  }

 private:
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  static constexpr double kMargin = 1 + 0x1p-20;
  static constexpr float kLeast = 0x1p-90f, kMost = 0x1p126f;

  static float ToFloat(double x) {
    return static_cast<float>(std::min<double>(x, std::numeric_limits<float>::max()));
  }
  static float AtMost(double ratio) {
    if (ratio != ratio) return std::numeric_limits<float>::infinity();  // nothing is above it
    const auto rounded = static_cast<float>(ratio);
    return static_cast<double>(rounded) > ratio ? std::nextafter(rounded, 0.0f) : rounded;
  }

  HWY_INLINE hn::Mask<D> Beyond(V difference, V magnitude) const {
    const auto bound = hn::MulAdd(hn::Set(d_, beyond_rtol_), magnitude, hn::Set(d_, beyond_atol_));
    return hn::And(hn::Gt(difference, bound), hn::Le(difference, hn::Set(d_, kMost)));
  }

  void RaiseRatio(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::size_t size) {
    const DoubleTag d;
    const hn::Half<D> half;
    auto greatest = hn::Set(d, max_rel_);
    const auto raise = [&](auto difference, auto magnitude) HWY_ATTR {
      const auto ratio = hn::Div(hn::PromoteTo(d, difference), hn::PromoteTo(d, magnitude));
      greatest = hn::Max(greatest, RoundToFloat(ratio));
    };
    for (std::size_t i = 0; i < size; i += hn::Lanes(d_)) {
      const auto y = hn::Abs(hn::LoadU(d_, b + i));
      const auto difference = hn::Abs(hn::Sub(hn::LoadU(d_, a + i), hn::LoadU(d_, b + i)));
      const auto wrong = Beyond(difference, y);
      const auto over = hn::IfThenElseZero(wrong, difference);
      const auto under = hn::IfThenElse(wrong, y, hn::Set(d_, 1));
      raise(hn::LowerHalf(half, over), hn::LowerHalf(half, under));
      raise(hn::UpperHalf(half, over), hn::UpperHalf(half, under));
    }
    max_rel_ = Fold(d, greatest, max_rel_, [](double x, double y) { return std::max(x, y); });
    ratio_ = std::max(ratio_, AtMost(max_rel_));
  }

  D d_;
  hn::ScalableTag<std::int32_t> counters_;
  BlockComparison* block_;
  SureBound<float> within_;
  float beyond_atol_, beyond_rtol_;
  float ratio_;  // smaller ratios need not be found
  double max_rel_ = 0;
  hn::Vec<hn::ScalableTag<std::int32_t>> zero_, greater_;
  V max_abs_;
};

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
