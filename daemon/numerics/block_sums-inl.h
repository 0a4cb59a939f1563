// block_sums-inl.h: sums of a block around a pivot, in floating point. Included once for each CPU,
// after lanes-inl.h. Internal to daemon/numerics.
#if defined(CGDEBUG_NUMERICS_BLOCK_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CGDEBUG_NUMERICS_BLOCK_SUMS_INL_H_
#undef CGDEBUG_NUMERICS_BLOCK_SUMS_INL_H_
#else
#define CGDEBUG_NUMERICS_BLOCK_SUMS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "daemon/numerics/decode.h"
#include "daemon/numerics/moments.h"

HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

// A block's sums are merged into the tensor's; within it they run in vectors of double, or of float
// for types of at most 16 bits, whose sums go over to double every kChain additions.
template <typename T>
inline constexpr std::size_t kChain = kSumsInDouble<T> ? 256 : 16;
// Whose subnormal values are normal floats.
template <typename T>
inline constexpr bool kHashedAsFloat =
    std::is_same_v<T, Half> || std::is_same_v<T, Float8E4m3fn> || std::is_same_v<T, Float8E5m2>;

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

  // A block; calls look(p) at each of its vectors of lanes.
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
    moments.sum_abs = SumOf(absolute_);
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
    constexpr std::size_t kParts = sizeof(Sum<T>) / sizeof(T);
    auto sum0 = hn::Zero(d_), sum1 = sum0, squares0 = sum0, squares1 = sum0, abs0 = sum0,
         abs1 = sum0;
    const auto pivot = pivot_;
    auto hash = hash_;
    const auto add = [&](auto x, auto& sum, auto& squares, auto& absolute) HWY_ATTR {
      const auto centred = hn::Sub(x, pivot);
      sum = hn::Add(sum, centred);
      squares = hn::MulAdd(centred, centred, squares);
      absolute = hn::Add(absolute, hn::Abs(x));
      if constexpr (kHashedAsFloat<T>) hash = hn::Xor(hash, hn::BitCast(bits_, x));
    };
    for (std::size_t v = 0; v < vectors; ++v, p += hn::Lanes(lane)) {
      look(p);
      add(DecodePart<T, 0>(p), sum0, squares0, abs0);
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
