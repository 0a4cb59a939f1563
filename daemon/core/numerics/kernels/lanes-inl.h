// lanes-inl.h: elements as lanes of vectors, for the kernels. Included once for each CPU, after
// hwy/highway.h. Internal to daemon/core/numerics.
#if defined(CGDEBUG_NUMERICS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CGDEBUG_NUMERICS_LANES_INL_H_
#undef CGDEBUG_NUMERICS_LANES_INL_H_
#else
#define CGDEBUG_NUMERICS_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "daemon/core/numerics/kernels/decode.h"

HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The lanes that an element is loaded into.
template <typename T>
using Lane = std::conditional_t<
    std::is_arithmetic_v<T>, T,
    std::conditional_t<std::is_same_v<T, Bool8>, std::uint8_t,
                       std::conditional_t<sizeof(T) == 1, std::int8_t, std::int16_t>>>;

// Counts of a block are kept in lanes of the element's width.
template <typename T>
inline constexpr std::size_t kBlockVectors = sizeof(T) == 1 ? 240 : 512;

// Sums of small floats run in float, everything else in double.
template <typename T>
inline constexpr bool kSumsInDouble = std::is_arithmetic_v<T>;
template <typename T>
using Sum = std::conditional_t<kSumsInDouble<T>, double, float>;

// Vector `i` of Sum<T> out of the elements of the vector of lanes at `p`.
template <typename T, std::size_t i>
HWY_INLINE hn::Vec<hn::ScalableTag<Sum<T>>> DecodePart(const Lane<T>* HWY_RESTRICT p) {
  const hn::ScalableTag<Sum<T>> d;
  using D = hn::ScalableTag<Sum<T>>;
  const std::size_t first = i * hn::Lanes(d);
  if constexpr (std::is_same_v<T, double>) {
    return hn::LoadU(d, p);
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return hn::ConvertTo(d, hn::LoadU(hn::RebindToSigned<D>(), p));
  } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, std::int32_t>) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), p + first));
  } else if constexpr (std::is_same_v<T, Bfloat16>) {  // even or odd elements
    const hn::RebindToUnsigned<D> bits;
    const auto two = hn::BitCast(bits, hn::LoadU(hn::ScalableTag<std::int16_t>(), p));
    if constexpr (i == 0) return hn::BitCast(d, hn::ShiftLeft<16>(two));
    return hn::BitCast(d, hn::And(two, hn::Set(bits, 0xffff0000u)));
  } else if constexpr (std::is_same_v<T, Half>) {
    const auto* half = reinterpret_cast<const hwy::float16_t*>(p) + first;
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), half));
  } else {  // float8 through float16, whose exponent is wide enough for both
    const hn::Rebind<std::uint16_t, D> pair;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(p) + first;
    auto bits =
        hn::ShiftLeft<8>(hn::PromoteTo(pair, hn::LoadU(hn::Rebind<std::uint8_t, D>(), bytes)));
    if constexpr (std::is_same_v<T, Float8E4m3fn>) {
      const auto magnitude = hn::ShiftRight<1>(hn::And(bits, hn::Set(pair, 0x7f00)));
      bits = hn::Or(hn::And(bits, hn::Set(pair, 0x8000)), magnitude);
    }
    const auto value = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
    if constexpr (std::is_same_v<T, Float8E5m2>) return value;
    return hn::Mul(value, hn::Set(d, 256.0f));
  }
}

template <class D, class V, typename Value, class Reduce>
HWY_INLINE Value Fold(D d, V v, Value value, const Reduce& reduce) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) value = reduce(value, lanes[i]);
  return value;
}

template <class V>
HWY_INLINE double SumOf(V v) {
  return Fold(hn::DFromV<V>(), v, 0.0, [](double a, auto b) { return a + static_cast<double>(b); });
}
// The sum of counters that counted with Sub(counter, mask).
template <class V>
HWY_INLINE std::uint64_t CountOf(V v) {
  using Signed = hwy::MakeSigned<hn::TFromV<V>>;
  using Unsigned = hwy::MakeUnsigned<Signed>;
  return Fold(hn::DFromV<V>(), v, std::uint64_t{0},
              [](std::uint64_t a, auto b) { return a + static_cast<Unsigned>(b); });
}

// The exclusive or of the lanes' bits.
template <class V>
HWY_INLINE std::uint64_t XorOf(V v) {
  using Unsigned = hwy::MakeUnsigned<hn::TFromV<V>>;
  return Fold(hn::DFromV<V>(), v, std::uint64_t{0},
              [](std::uint64_t a, auto b) { return a ^ static_cast<Unsigned>(b); });
}

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
