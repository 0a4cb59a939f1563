#include "daemon/core/numerics/kernels/stats_kernel.h"

#include <bit>
#include <cmath>
#include <type_traits>

#include "daemon/core/numerics/kernels/cpu.h"
#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/numerics/kernels/ordered_key.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/core/numerics/kernels/stats_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "daemon/core/numerics/kernels/lanes-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
// After lanes-inl.h.
#include "daemon/core/numerics/kernels/block_sums-inl.h"
#include "daemon/core/numerics/kernels/integer_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

template <typename T>
HWY_INLINE double PivotOf(const Moments& so_far, const Lane<T>* p) {
  if constexpr (!kIsFloatingElement<T>) {
    return so_far.count > 0 ? std::nearbyint(so_far.mean) : 0;
  } else {
    const double value =
        so_far.count > 0
            ? so_far.mean
            : ToDouble(LoadElement<T>({reinterpret_cast<const std::byte*>(p), sizeof(T)}, 0));
    return std::isfinite(value) ? static_cast<double>(static_cast<Sum<T>>(value)) : 0;
  }
}

// Elements below the least normal number; computed only if there are any.
struct Tiny {
  std::uint64_t zeros = 0;
  std::uint64_t subnormals = 0;
};
template <typename T>
HWY_INLINE Tiny CountTiny(const Lane<T>* HWY_RESTRICT p, std::size_t vectors) {
  const hn::ScalableTag<hwy::MakeSigned<Lane<T>>> d;
  using Bits = hn::TFromD<decltype(d)>;
  const auto magnitude = hn::Set(d, std::numeric_limits<Bits>::max());
  const auto min_normal = hn::Set(d, static_cast<Bits>(OrderedKey<T>::kMinNormal));
  auto zeros = hn::Zero(d), tiny = zeros;
  for (std::size_t v = 0; v < vectors; ++v, p += hn::Lanes(d)) {
    const auto bits = hn::And(hn::LoadU(d, reinterpret_cast<const Bits*>(p)), magnitude);
    zeros = hn::Sub(zeros, hn::VecFromMask(d, hn::Eq(bits, hn::Zero(d))));
    tiny = hn::Sub(tiny, hn::VecFromMask(d, hn::Lt(bits, min_normal)));
  }
  const std::uint64_t count = CountOf(zeros);
  return {count, CountOf(tiny) - count};
}

// The XOR of `n` elements as doubles from the XOR of their bits. An exponent becomes the double's
// by an addition that carries nowhere: it keeps the low bits and turns the top bit b into b ? 0x400
// : kLow, so that it goes through XOR. Requires: no NaN, Inf or subnormal; `zeros` of the `n` are
// 0.
template <typename T>
std::uint64_t HashFromBits(std::uint64_t bits, std::uint64_t n, std::uint64_t zeros) {
  if constexpr (std::is_same_v<T, double>) return bits;
  constexpr unsigned kMantissa = static_cast<unsigned>(std::countr_zero(
      static_cast<std::make_unsigned_t<typename OrderedKey<T>::Key>>(OrderedKey<T>::kMinNormal)));
  constexpr unsigned kExponent = 8 * sizeof(T) - 1 - kMantissa;
  constexpr std::uint64_t kTop = std::uint64_t{1} << (kExponent - 1), kLow = 0x400 - kTop;
  const std::uint64_t sign = bits >> (8 * sizeof(T) - 1) & 1;
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << kMantissa) - 1);
  const std::uint64_t exponent = bits >> kMantissa & (2 * kTop - 1);
  std::uint64_t wide = exponent & (kTop - 1);
  if (exponent & kTop) wide ^= 0x400 ^ kLow;
  if ((n - zeros) % 2 == 1) wide ^= kLow;
  return sign << 63 | wide << 52 | mantissa << (52 - kMantissa);
}

// The same if there are subnormals: converts each element to a double.
template <typename T>
std::uint64_t HashSubnormals(const Lane<T>* HWY_RESTRICT p, std::size_t vectors) {
  const hn::ScalableTag<double> wide;
  const hn::ScalableTag<std::uint64_t> bits;
  auto hash = hn::Zero(bits);
  const auto add = [&](auto part) HWY_ATTR {
    using V = decltype(part);
    if constexpr (std::is_same_v<hn::TFromV<V>, double>) {
      hash = hn::Xor(hash, hn::BitCast(bits, part));
    } else {
      const hn::Half<hn::DFromV<V>> half;
      hash = hn::Xor(hash, hn::BitCast(bits, hn::PromoteTo(wide, hn::LowerHalf(half, part))));
      hash = hn::Xor(hash, hn::BitCast(bits, hn::PromoteTo(wide, hn::UpperHalf(half, part))));
    }
  };
  for (std::size_t v = 0; v < vectors; ++v, p += hn::Lanes(hn::ScalableTag<Lane<T>>())) {
    add(DecodePart<T, 0>(p));
    if constexpr (sizeof(Sum<T>) > sizeof(T)) add(DecodePart<T, 1>(p));
  }
  return XorOf(hash);
}

// --- one block of each family: false when it holds what a kernel does not do ---------------------

// Extremes of floats of 8 and 16 bits, found from the bits in lanes of the element's own width. As
// signed integers, the bits of negative numbers are negative; as unsigned ones, they are the
// greater, the farther the number is from 0.
template <typename T>
struct BitExtremes {
  using K = OrderedKey<T>;
  using Bits = Lane<T>;
  using Unsigned = hwy::MakeUnsigned<Bits>;

  // The greatest bits, as signed and as unsigned, and the least magnitude.
  template <class V, class U>
  BitExtremes(V greatest_lanes, U farthest_lanes, V nearest_lanes) {
    const auto greatest = Fold(hn::DFromV<V>(), greatest_lanes, std::numeric_limits<Bits>::min(),
                               [](Bits a, Bits b) { return std::max(a, b); });
    const auto farthest =
        std::bit_cast<Bits>(Fold(hn::DFromV<U>(), farthest_lanes, Unsigned{0},
                                 [](Unsigned a, Unsigned b) { return std::max(a, b); }));
    const auto nearest = Fold(hn::DFromV<V>(), nearest_lanes, std::numeric_limits<Bits>::max(),
                              [](Bits a, Bits b) { return std::min(a, b); });
    const auto negative = static_cast<Bits>(nearest | std::numeric_limits<Bits>::min());
    const auto max = K::FromElement(std::bit_cast<T>(greatest >= 0 ? greatest : negative));
    const auto min = K::FromElement(std::bit_cast<T>(farthest < 0 ? farthest : nearest));
    least = K::ToValue(min);
    most = K::ToValue(max);
    all_finite = max <= K::kHighestFinite && min >= K::kLowestFinite;
    has_tiny = nearest < K::kMinNormal;
  }

  double least = 0, most = 0;
  bool all_finite = false;
  bool has_tiny = false;
};

template <typename T>
bool SmallFloatBlock(const Lane<T>* HWY_RESTRICT p, std::size_t vectors, KernelSums* sums) {
  const hn::ScalableTag<Lane<T>> d;
  const hn::ScalableTag<hwy::MakeUnsigned<Lane<T>>> du;
  const auto magnitude = hn::Set(d, std::numeric_limits<Lane<T>>::max());
  auto greatest = hn::Set(d, std::numeric_limits<Lane<T>>::min());
  auto farthest = hn::Zero(du);
  auto nearest = magnitude, hash = hn::Zero(d);
  const double pivot = PivotOf<T>(sums->moments, p);
  BlockSums<T> block(static_cast<float>(pivot));
  block.AddBlock(p, vectors, [&](const Lane<T>* at) HWY_ATTR {
    const auto bits = hn::LoadU(d, at);
    greatest = hn::Max(greatest, bits);
    farthest = hn::Max(farthest, hn::BitCast(du, bits));
    nearest = hn::Min(nearest, hn::And(bits, magnitude));
    hash = hn::Xor(hash, bits);
  });
  const BitExtremes<T> extremes(greatest, farthest, nearest);
  if (!extremes.all_finite) return false;
  if constexpr (std::is_same_v<T, Bfloat16>) {  // squares of float
    const double abs_max = std::max(std::fabs(extremes.least), std::fabs(extremes.most));
    if (abs_max > 0x1p60 || (abs_max < 0x1p-50 && abs_max > 0)) return false;
  }
  const std::uint64_t n = vectors * hn::Lanes(d);
  const Tiny tiny = extremes.has_tiny ? CountTiny<T>(p, vectors) : Tiny{};
  sums->min = std::min(sums->min, extremes.least);
  sums->max = std::max(sums->max, extremes.most);
  sums->zero += tiny.zeros;
  sums->subnormal += tiny.subnormals;
  if constexpr (kHashedAsFloat<T>) {
    sums->hash ^= HashFromBits<float>(block.FloatBits(), n, tiny.zeros);
  } else {
    sums->hash ^= tiny.subnormals > 0 ? HashSubnormals<T>(p, vectors)
                                      : HashFromBits<T>(XorOf(hash), n, tiny.zeros);
  }
  sums->moments.Merge(block.Result(static_cast<double>(n), pivot));
  return true;
}

// The hash of `normal` normal numbers and any zeros and subnormals, from the XOR of them all. Bit i
// of `odd` says whether the i-th magnitude from 0 occurs an odd number of times, with either sign.
std::uint64_t HashOfFloat8(std::uint64_t bits, std::uint64_t normal, std::uint64_t odd) {
  using K = OrderedKey<Float8E4m3fn>;
  std::uint64_t hash = 0;
  for (std::int16_t i = 1; i < K::kMinNormal; ++i) {
    if ((odd >> i & 1) == 0) continue;
    bits ^= static_cast<std::uint64_t>(i);
    hash ^= std::bit_cast<std::uint64_t>(K::ToValue(i));
  }
  return hash ^ HashFromBits<Float8E4m3fn>(bits, normal, 0);
}

// Zeros and subnormals are common in this type, so they are counted with the rest.
bool Float8E4m3fnBlock(const std::int8_t* HWY_RESTRICT p, std::size_t vectors, KernelSums* sums) {
  using T = Float8E4m3fn;
  const hn::ScalableTag<std::uint8_t> d;
  const hn::ScalableTag<std::int8_t> di;
  static_assert(OrderedKey<T>::kMinNormal == 8);
  HWY_ALIGN constexpr std::uint8_t kBitOf[16] = {1, 2, 4, 8, 16, 32, 64, 128};
  const auto bit_of = hn::LoadDup128(d, kBitOf);
  auto greatest = hn::Set(di, std::numeric_limits<std::int8_t>::min()),
       nearest = hn::Set(di, std::numeric_limits<std::int8_t>::max());
  auto farthest = hn::Zero(d), hash = farthest, odd = farthest, nonzero = farthest,
       normal = farthest;
  const double pivot = PivotOf<T>(sums->moments, p);
  BlockSums<T> block(static_cast<float>(pivot));
  block.AddBlock(p, vectors, [&](const std::int8_t* at) HWY_ATTR {
    const auto bits = hn::BitCast(d, hn::LoadU(di, at));
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7f));
    greatest = hn::Max(greatest, hn::BitCast(di, bits));
    farthest = hn::Max(farthest, bits);
    nearest = hn::Min(nearest, hn::BitCast(di, magnitude));
    hash = hn::Xor(hash, bits);
    nonzero = hn::Add(nonzero, hn::Min(magnitude, hn::Set(d, 1)));
    const auto at_most_normal = hn::Min(magnitude, hn::Set(d, 8));
    odd = hn::Xor(odd, hn::TableLookupBytes(bit_of, at_most_normal));
    normal = hn::Add(normal, hn::SaturatedSub(at_most_normal, hn::Set(d, 7)));
  });
  const BitExtremes<T> extremes(greatest, farthest, nearest);
  if (!extremes.all_finite) return false;
  const std::uint64_t n = vectors * hn::Lanes(d), nonzeros = CountOf(nonzero),
                      normals = CountOf(normal);
  sums->min = std::min(sums->min, extremes.least);
  sums->max = std::max(sums->max, extremes.most);
  sums->zero += n - nonzeros;
  sums->subnormal += nonzeros - normals;
  sums->hash ^= HashOfFloat8(XorOf(hash), normals, XorOf(odd));
  sums->moments.Merge(block.Result(static_cast<double>(n), pivot));
  return true;
}

template <typename T>
bool FloatBlock(const T* HWY_RESTRICT p, std::size_t vectors, KernelSums* sums) {
  using Bits = typename OrderedKey<T>::Bits;
  const hn::ScalableTag<T> d;
  const hn::ScalableTag<Bits> di;
  const auto magnitude = hn::Set(di, std::numeric_limits<Bits>::max());
  auto min = hn::Set(d, std::numeric_limits<T>::infinity()), max = hn::Neg(min);
  auto least = magnitude, hash = hn::Zero(di);
  const double pivot = PivotOf<T>(sums->moments, p);
  BlockSums<T> block(pivot);
  block.AddBlock(p, vectors, [&](const T* at) HWY_ATTR {
    const auto x = hn::LoadU(d, at);
    min = hn::Min(min, x);
    max = hn::Max(max, x);
    const auto bits = hn::BitCast(di, x);
    least = hn::Min(least, hn::And(bits, magnitude));
    hash = hn::Xor(hash, bits);
  });
  const std::uint64_t n = vectors * hn::Lanes(d);
  const Moments moments = block.Result(static_cast<double>(n), pivot);
  // NaN and Inf go through these sums; so does the square of a double that is too large.
  if (!std::isfinite(moments.squares) || !std::isfinite(moments.sum_squared) ||
      !std::isfinite(moments.sum_abs)) {
    return false;
  }
  const auto nearest = Fold(di, least, std::numeric_limits<Bits>::max(),
                            [](Bits a, Bits b) { return std::min(a, b); });
  const Tiny tiny = nearest < OrderedKey<T>::kMinNormal ? CountTiny<T>(p, vectors) : Tiny{};
  sums->min =
      Fold(d, min, sums->min, [](double a, T b) { return std::min(a, static_cast<double>(b)); });
  sums->max =
      Fold(d, max, sums->max, [](double a, T b) { return std::max(a, static_cast<double>(b)); });
  sums->zero += tiny.zeros;
  sums->subnormal += tiny.subnormals;
  sums->hash ^= tiny.subnormals > 0 ? HashSubnormals<T>(p, vectors)
                                    : HashFromBits<T>(XorOf(hash), n, tiny.zeros);
  sums->moments.Merge(moments);
  return true;
}

template <typename T>
bool IntegerBlock(const T* HWY_RESTRICT p, std::size_t vectors, KernelSums* sums) {
  const hn::ScalableTag<T> d;
  auto min = hn::Set(d, std::numeric_limits<T>::max()),
       max = hn::Set(d, std::numeric_limits<T>::min());
  auto zero = hn::Zero(d), hash = hn::Zero(d);
  const double pivot = PivotOf<T>(sums->moments, p);
  BlockSums<T> block(static_cast<Sum<T>>(pivot));
  block.AddBlock(p, vectors, [&](const T* at) HWY_ATTR {
    const auto x = hn::LoadU(d, at);
    min = hn::Min(min, x);
    max = hn::Max(max, x);
    zero = hn::Sub(zero, hn::VecFromMask(d, hn::Eq(x, hn::Zero(d))));
    hash = hn::Xor(hash, x);
  });
  const T least =
      Fold(d, min, std::numeric_limits<T>::max(), [](T a, T b) { return std::min(a, b); });
  const T most =
      Fold(d, max, std::numeric_limits<T>::min(), [](T a, T b) { return std::max(a, b); });
  if constexpr (std::is_same_v<T, std::int64_t>) {  // beyond, doubles are not all integers
    constexpr std::int64_t kExact = std::int64_t{1} << 52;
    if (least < -kExact || most > kExact) return false;
  }
  sums->min = std::min(sums->min, static_cast<double>(least));
  sums->max = std::max(sums->max, static_cast<double>(most));
  sums->zero += CountOf(zero);
  sums->hash = Fold(d, hash, sums->hash, [](std::uint64_t a, T b) {
    return a ^ static_cast<std::uint64_t>(static_cast<std::int64_t>(b));
  });
  const auto n = static_cast<double>(vectors * hn::Lanes(d));
  sums->moments.Merge(block.Result(n, pivot));
  return true;
}

// Does one part of a tensor. Returns how many vectors were done; 0: the plain loops must do it.
template <typename T>
std::size_t SumPart(const Lane<T>* HWY_RESTRICT p, std::uint64_t left, KernelSums* sums,
                    bool* narrow) {
  const auto at_most = [left](std::size_t most) {
    return static_cast<std::size_t>(std::min<std::uint64_t>(left, most));
  };
  if constexpr (std::is_same_v<T, Bool8>) {
    return Bools(p, at_most(~std::size_t{0}), sums);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 4) {
    const std::size_t vectors = at_most(kNarrowVectors<T>);
    *narrow = *narrow && NarrowIntegers<T>(p, vectors, sums);
    if (*narrow) return vectors;
  }
  const std::size_t vectors = at_most(kBlockVectors<T>);
  bool done = false;
  if constexpr (std::is_integral_v<T>) {
    if constexpr (sizeof(T) >= 4) done = IntegerBlock<T>(p, vectors, sums);
  } else if constexpr (std::is_floating_point_v<T>) {
    done = FloatBlock<T>(p, vectors, sums);
  } else if constexpr (std::is_same_v<T, Float8E4m3fn>) {
    done = Float8E4m3fnBlock(p, vectors, sums);
  } else if constexpr (kIsFloatingElement<T> && !kHasOneNan<T> && !kHoldsTwo<T>) {
    done = SmallFloatBlock<T>(p, vectors, sums);
  }
  return done ? vectors : 0;
}

template <typename T>
std::uint64_t SumOfType(const std::byte* data, std::uint64_t count, KernelSums* sums) {
  const hn::ScalableTag<Lane<T>> d;
  const auto* p = reinterpret_cast<const Lane<T>*>(data);
  const std::uint64_t vectors = count / hn::Lanes(d);
  std::uint64_t left = vectors;
  bool narrow = true;
  while (left > 0) {
    const std::size_t done = SumPart<T>(p, left, sums, &narrow);
    if (done == 0) break;
    p += done * hn::Lanes(d);
    left -= done;
  }
  return (vectors - left) * hn::Lanes(d);
}

std::uint64_t SumTensor(layout::Dtype dtype, const std::byte* data, std::uint64_t count,
                        KernelSums* sums) {
  return VisitDtype(dtype, [&](auto element) -> std::uint64_t {
    using T = typename decltype(element)::type;
    return SumOfType<T>(data, count, sums);
  });
}

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace cgdebug::numerics {

SumKernel ChosenSumKernel() {
  switch (ChosenCpu()) {
#if HWY_TARGETS & HWY_AVX3
    case Cpu::kAvx512:
      return N_AVX3::SumTensor;
#endif
#if HWY_TARGETS & HWY_AVX2
    case Cpu::kAvx2:
      return N_AVX2::SumTensor;
#endif
#if HWY_TARGETS & HWY_NEON
    case Cpu::kNeon:
      return N_NEON::SumTensor;
#endif
    default:
      return [](layout::Dtype, const std::byte*, std::uint64_t, KernelSums*) {
        return std::uint64_t{0};
      };
  }
}

}  // namespace cgdebug::numerics
#endif
