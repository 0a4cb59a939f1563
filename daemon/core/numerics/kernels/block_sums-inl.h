// block_sums-inl.h: sums of a block around a pivot, in floating point. Included once for each CPU,
// after lanes-inl.h. Internal to daemon/core/numerics.
#if defined(CGDEBUG_NUMERICS_BLOCK_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CGDEBUG_NUMERICS_BLOCK_SUMS_INL_H_
#undef CGDEBUG_NUMERICS_BLOCK_SUMS_INL_H_
#else
#define CGDEBUG_NUMERICS_BLOCK_SUMS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/numerics/kernels/moments.h"

HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

// A block's sums are merged into the tensor's. Within a block they run in vectors of double. Types
// of at most 16 bits run in float, and move to double every kChain additions.
template <typename T>
inline constexpr std::size_t kChain = kSumsInDouble<T> ? 256 : 16;
// Types whose subnormal values, which are not rare, are normal numbers as floats.
template <typename T>
inline constexpr bool kHashedAsFloat = std::is_same_v<T, Half> || std::is_same_v<T, Float8E5m2>;

// Elements are divided by this before they are added.
template <typename T>
inline constexpr Sum<T> kScale = std::is_same_v<T, Float8E4m3fn> ? 256 : 1;

// Passes on the elements of the vector of lanes at `p`, divided by kScale, in any order. Each is
// put into the upper half of a float16, whose exponent is one bit wider.
template <class Use>
HWY_INLINE void DecodeFloat8E4m3fn(const std::int8_t* HWY_RESTRICT p, const Use& use) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<std::int16_t> pair;
  const hn::Half<decltype(pair)> half;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const auto bits = hn::LoadU(pair, reinterpret_cast<const std::int16_t*>(p));
  const auto to_half = [&](auto upper) HWY_ATTR {
    return hn::And(hn::ShiftRight<1>(upper), hn::Set(pair, static_cast<std::int16_t>(0xbf80)));
  };
  const auto widen = [&](auto x) HWY_ATTR { return hn::PromoteTo(d, hn::BitCast(d16, x)); };
  const auto even = to_half(hn::ShiftLeft<8>(bits)), odd = to_half(bits);
  use(widen(hn::LowerHalf(half, even)), widen(hn::UpperHalf(half, even)));
  use(widen(hn::LowerHalf(half, odd)), widen(hn::UpperHalf(half, odd)));
}

// The sums of one block around a pivot.
template <typename T>
class BlockSums {
 public:
  explicit BlockSums(Sum<T> pivot)
      : pivot_(hn::Set(d_, pivot)),
        sum_(hn::Zero(wide_)),
        squares_(hn::Zero(wide_)),
        absolute_(hn::Zero(wide_)),
        hash_(hn::Zero(bits_)) {}

  // Adds a block; calls look(p) for each of its vectors of lanes.
  template <class Look>
  HWY_INLINE void AddBlock(const Lane<T>* HWY_RESTRICT p, std::size_t vectors, const Look& look) {
    const std::size_t step = kChain<T> * hn::Lanes(hn::ScalableTag<Lane<T>>());
    for (; vectors > kChain<T>; vectors -= kChain<T>, p += step) Add(p, kChain<T>, look);
    Add(p, vectors, look);
  }

  Moments Result(double count, double pivot) const {
    const double sum = SumOf(sum_), squares = SumOf(squares_);
    Moments moments;
    moments.count = count;
    moments.mean = pivot + sum / count;
    moments.squares = std::max(0.0, squares - sum * sum / count);
    moments.sum_abs = SumOf(absolute_) * kScale<T>;
    moments.sum_squared = std::max(0.0, squares + pivot * (2 * sum + count * pivot));
    return moments;
  }
  // XOR of the bits of the elements as floats. Requires: kHashedAsFloat<T>.
  std::uint64_t FloatBits() const { return XorOf(hash_); }

 private:
  using D = hn::ScalableTag<Sum<T>>;
  using Wide = hn::ScalableTag<double>;

  template <class Look>
  HWY_INLINE void Add(const Lane<T>* HWY_RESTRICT p, std::size_t vectors, const Look& look) {
    const hn::ScalableTag<Lane<T>> lane;
    constexpr std::size_t kParts = std::is_same_v<T, Float8E4m3fn> ? 0 : sizeof(Sum<T>) / sizeof(T);
    auto sum0 = hn::Zero(d_), sum1 = sum0, squares0 = sum0, squares1 = sum0, abs0 = sum0,
         abs1 = sum0;
    const auto pivot = pivot_;
    auto hash = hash_;
    const auto add = [&](auto x, auto& sum, auto& squares, auto& absolute) HWY_ATTR {
      const auto centred = Centre(x, pivot);
      sum = hn::Add(sum, centred);
      squares = hn::MulAdd(centred, centred, squares);
      absolute = hn::Add(absolute, hn::Abs(x));
      if constexpr (kHashedAsFloat<T>) hash = hn::Xor(hash, hn::BitCast(bits_, x));
    };
    for (std::size_t v = 0; v < vectors; ++v, p += hn::Lanes(lane)) {
      look(p);
      if constexpr (std::is_same_v<T, Float8E4m3fn>) {
        DecodeFloat8E4m3fn(p, [&](auto x0, auto x1) HWY_ATTR {
          add(x0, sum0, squares0, abs0);
          add(x1, sum1, squares1, abs1);
        });
      }
      if constexpr (kParts > 0) add(DecodePart<T, 0>(p), sum0, squares0, abs0);
      if constexpr (kParts > 1) add(DecodePart<T, 1>(p), sum1, squares1, abs1);
      if constexpr (kParts > 2) {
        add(DecodePart<T, 2>(p), sum0, squares0, abs0);
        add(DecodePart<T, 3>(p), sum1, squares1, abs1);
      }
    }
    Widen(sum0, sum1, &sum_);
    Widen(squares0, squares1, &squares_);
    Widen(abs0, abs1, &absolute_);
    hash_ = hash;
  }

  template <class V>
  HWY_INLINE static V Centre(V x, V pivot) {
    const D d;
    if constexpr (kScale<T> == 1) return hn::Sub(x, pivot);
    return hn::MulSub(x, hn::Set(d, kScale<T>), pivot);
  }

  template <class V, class W>
  HWY_INLINE static void Widen(V a, V b, W* total) {
    const Wide wide;
    if constexpr (kSumsInDouble<T>) {
      *total = hn::Add(*total, hn::Add(a, b));
    } else {
      const hn::Half<D> half;
      const auto both = hn::Add(a, b);
      *total = hn::Add(*total, hn::Add(hn::PromoteTo(wide, hn::LowerHalf(half, both)),
                                       hn::PromoteTo(wide, hn::UpperHalf(half, both))));
    }
  }

  D d_;
  Wide wide_;
  hn::RebindToUnsigned<D> bits_;
  hn::Vec<D> pivot_;
  hn::Vec<Wide> sum_, squares_, absolute_;
  hn::Vec<hn::RebindToUnsigned<D>> hash_;
};

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
