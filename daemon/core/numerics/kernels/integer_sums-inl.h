// integer_sums-inl.h: exact sums of integers, in the narrowest lanes that hold them. Included once
// for each CPU, after lanes-inl.h. Internal to daemon/core/numerics.
#if defined(CGDEBUG_NUMERICS_INTEGER_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CGDEBUG_NUMERICS_INTEGER_SUMS_INL_H_
#undef CGDEBUG_NUMERICS_INTEGER_SUMS_INL_H_
#else
#define CGDEBUG_NUMERICS_INTEGER_SUMS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/numerics/kernels/stats_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

using U64Tag = hn::ScalableTag<std::uint64_t>;
using U64s = hn::Vec<U64Tag>;

// Sums unsigned lanes of 32 bits in words of 64. Adds up whole words and, separately, their upper
// halves, which Total() puts in their place. That is one operation less than splitting each word.
class WideSum {
 public:
  WideSum() : words_(hn::Zero(d_)), upper_(hn::Zero(d_)) {}
  template <class V>
  HWY_INLINE void Add(V lanes) {
    const auto words = hn::BitCast(d_, lanes);
    Add(words, hn::ShiftRight<32>(words));
  }
  HWY_INLINE void Add(U64s words, U64s upper) {
    words_ = hn::Add(words_, words);
    upper_ = hn::Add(upper_, upper);
  }
  std::uint64_t Total() const {
    const std::uint64_t upper = CountOf(upper_);
    return CountOf(words_) - (upper << 32) + upper;
  }

 private:
  U64Tag d_;
  U64s words_, upper_;
};

// The sums of one vector after the other, at most kIntegerChain of them between two Flush().
template <typename T, std::size_t kBytes = sizeof(T)>
class IntegerSums;
template <typename T>
inline constexpr std::size_t kIntegerChain = sizeof(T) == 2 ? 4096 : 240;

template <typename T>
class IntegerSums<T, 1> {
 public:
  IntegerSums()
      : from_least_(hn::Zero(d64_)),
        absolute_(hn::Zero(d64_)),
        all_nonzero_(hn::Zero(d64_)),
        nonzero_(hn::Zero(du_)),
        squares0_(hn::Zero(quad_)),
        squares1_(hn::Zero(quad_)) {}
  HWY_INLINE void Add(hn::Vec<hn::ScalableTag<T>> x) {
    auto magnitude = hn::BitCast(du_, x);
    if constexpr (std::is_signed_v<T>) {
      const auto from_least = hn::Xor(magnitude, hn::Set(du_, 0x80));
      from_least_ = hn::Add(from_least_, hn::SumsOf8(from_least));
      magnitude = hn::BitCast(du_, hn::Abs(x));  // 128 too
    }
    absolute_ = hn::Add(absolute_, hn::SumsOf8(magnitude));
    nonzero_ = hn::Add(nonzero_, hn::Min(magnitude, hn::Set(du_, 1)));
    const auto pairs = hn::BitCast(pair_, magnitude);
    const auto even = hn::BitCast(signed_pair_, hn::And(pairs, hn::Set(pair_, 0xff)));
    const auto odd = hn::BitCast(signed_pair_, hn::ShiftRight<8>(pairs));
    squares0_ = hn::ReorderWidenMulAccumulate(quad_, even, even, squares0_, squares1_);
    squares0_ = hn::ReorderWidenMulAccumulate(quad_, odd, odd, squares0_, squares1_);
  }
  HWY_INLINE void Flush() {
    all_nonzero_ = hn::Add(all_nonzero_, hn::SumsOf8(nonzero_));
    squared_.Add(squares0_);
    squared_.Add(squares1_);
    nonzero_ = hn::Zero(du_);
    squares0_ = squares1_ = hn::Zero(quad_);
  }
  IntegerTotals Result(std::uint64_t count) const {
    IntegerTotals totals;
    totals.count = count;
    totals.zero = count - CountOf(all_nonzero_);
    totals.absolute = CountOf(absolute_);
    totals.sum = static_cast<std::int64_t>(std::is_signed_v<T> ? CountOf(from_least_) - 128 * count
                                                               : totals.absolute);
    totals.squared = squared_.Total();
    return totals;
  }

 private:
  hn::ScalableTag<std::uint8_t> du_;
  hn::ScalableTag<std::uint16_t> pair_;
  hn::ScalableTag<std::int16_t> signed_pair_;
  hn::ScalableTag<std::int32_t> quad_;
  U64Tag d64_;
  U64s from_least_, absolute_, all_nonzero_;
  hn::Vec<hn::ScalableTag<std::uint8_t>> nonzero_;
  hn::Vec<hn::ScalableTag<std::int32_t>> squares0_, squares1_;
  WideSum squared_;
};

// 2^15 is subtracted from unsigned elements, so that they fit the signed products.
template <typename T>
class IntegerSums<T, 2> {
 public:
  IntegerSums()
      : sum0_(hn::Zero(wide_)),
        sum1_(hn::Zero(wide_)),
        positive0_(hn::Zero(wide_)),
        positive1_(hn::Zero(wide_)),
        nonzero_(hn::Zero(du_)) {}
  HWY_INLINE void Add(hn::Vec<hn::ScalableTag<T>> element) {
    const auto one = hn::Set(d_, 1);
    auto x = hn::BitCast(d_, element);
    if constexpr (std::is_unsigned_v<T>) {
      x = hn::Xor(x, hn::Set(d_, std::numeric_limits<std::int16_t>::min()));
    } else {
      const auto positive = hn::Max(x, hn::Zero(d_));
      positive0_ = hn::ReorderWidenMulAccumulate(wide_, positive, one, positive0_, positive1_);
    }
    sum0_ = hn::ReorderWidenMulAccumulate(wide_, x, one, sum0_, sum1_);
    nonzero_ = hn::Add(nonzero_, hn::Min(hn::BitCast(du_, element), hn::Set(du_, 1)));
    auto squares1 = hn::Zero(wide_);  // unused where squares0 is the sum of two
    const auto squares0 = hn::ReorderWidenMulAccumulate(wide_, x, x, hn::Zero(wide_), squares1);
    squared_.Add(squares0);
    if constexpr (HWY_TARGET == HWY_NEON) squared_.Add(squares1);
  }
  HWY_INLINE void Flush() {
    const auto zero = hn::Zero(wide_);
    const auto total = [](auto v) HWY_ATTR {
      return Fold(hn::DFromV<decltype(v)>(), v, std::int64_t{0},
                  [](std::int64_t a, std::int32_t b) { return a + b; });
    };
    all_ += total(sum0_) + total(sum1_);
    positive_ += total(positive0_) + total(positive1_);
    all_nonzero_ += CountOf(nonzero_);
    sum0_ = sum1_ = positive0_ = positive1_ = zero;
    nonzero_ = hn::Zero(du_);
  }
  IntegerTotals Result(std::uint64_t count) const {
    IntegerTotals totals;
    totals.count = count;
    totals.zero = count - all_nonzero_;
    totals.sum = all_;
    totals.absolute = static_cast<std::uint64_t>(2 * positive_ - all_);
    totals.squared = squared_.Total();
    if constexpr (std::is_unsigned_v<T>) {  // x^2 = (x - 2^15)^2 + 2^16 (x - 2^15) + 2^30
      totals.squared += (static_cast<std::uint64_t>(all_) << 16) + (count << 30);
      totals.absolute = static_cast<std::uint64_t>(all_) + (count << 15);
      totals.sum = static_cast<std::int64_t>(totals.absolute);
    }
    return totals;
  }

 private:
  hn::ScalableTag<std::int16_t> d_;
  hn::ScalableTag<std::uint16_t> du_;
  hn::ScalableTag<std::int32_t> wide_;
  hn::Vec<hn::ScalableTag<std::int32_t>> sum0_, sum1_, positive0_, positive1_;
  hn::Vec<hn::ScalableTag<std::uint16_t>> nonzero_;
  WideSum squared_;
  std::int64_t all_ = 0, positive_ = 0;
  std::uint64_t all_nonzero_ = 0;
};

// Requires: magnitudes below 2^26, for the squares of a chain.
template <typename T>
class IntegerSums<T, 4> {
 public:
  IntegerSums() : nonzero_(hn::Zero(du_)), squared0_(hn::Zero(d64_)), squared1_(hn::Zero(d64_)) {}
  HWY_INLINE void Add(hn::Vec<hn::ScalableTag<T>> x) {
    from_least_.Add(hn::Xor(x, hn::Set(d_, std::numeric_limits<T>::min())));
    const auto magnitude = hn::BitCast(du_, hn::Abs(x));
    nonzero_ = hn::Add(nonzero_, hn::Min(magnitude, hn::Set(du_, 1)));
    const auto words = hn::BitCast(d64_, magnitude), upper = hn::ShiftRight<32>(words);
    absolute_.Add(words, upper);
    const auto odd = hn::BitCast(du_, upper);
    squared0_ = hn::Add(squared0_, hn::MulEven(magnitude, magnitude));
    squared1_ = hn::Add(squared1_, hn::MulEven(odd, odd));
  }
  HWY_INLINE void Flush() {}
  IntegerTotals Result(std::uint64_t count) const {
    IntegerTotals totals;
    totals.count = count;
    totals.zero = count - CountOf(nonzero_);
    totals.sum = static_cast<std::int64_t>(from_least_.Total() - (count << 31));
    totals.absolute = absolute_.Total();
    totals.squared = CountOf(squared0_) + CountOf(squared1_);
    return totals;
  }

 private:
  hn::ScalableTag<T> d_;
  hn::ScalableTag<std::uint32_t> du_;
  U64Tag d64_;
  WideSum from_least_, absolute_;
  hn::Vec<hn::ScalableTag<std::uint32_t>> nonzero_;
  U64s squared0_, squared1_;
};

// How many vectors a call of NarrowIntegers() takes: a squared total fits 64 bits.
template <typename T>
inline constexpr std::size_t kNarrowVectors = (sizeof(T) == 4 ? 1 : 16) * kIntegerChain<T>;

// False, with nothing done, if the elements are too large.
template <typename T>
bool NarrowIntegers(const T* HWY_RESTRICT p, std::size_t vectors, KernelSums* sums) {
  const hn::ScalableTag<T> d;
  auto min = hn::Set(d, std::numeric_limits<T>::max()),
       max = hn::Set(d, std::numeric_limits<T>::min()), hash = hn::Zero(d);
  IntegerSums<T> exact;
  const std::uint64_t count = vectors * hn::Lanes(d);
  while (vectors > 0) {
    const std::size_t chain = std::min(vectors, kIntegerChain<T>);
    for (std::size_t v = 0; v < chain; ++v, p += hn::Lanes(d)) {
      const auto x = hn::LoadU(d, p);
      min = hn::Min(min, x);
      max = hn::Max(max, x);
      hash = hn::Xor(hash, x);
      exact.Add(x);
    }
    exact.Flush();
    vectors -= chain;
  }
  const T least =
      Fold(d, min, std::numeric_limits<T>::max(), [](T a, T b) { return std::min(a, b); });
  const T most =
      Fold(d, max, std::numeric_limits<T>::min(), [](T a, T b) { return std::max(a, b); });
  if constexpr (sizeof(T) == 4) {
    constexpr T kTooLarge = T{1} << 26;
    if (least <= -kTooLarge || most >= kTooLarge) return false;
  }
  // The sign of the XOR is that of its elements' as wide integers.
  const auto bits = static_cast<T>(XorOf(hash));
  sums->Add(exact.Result(count), static_cast<double>(least), static_cast<double>(most),
            static_cast<std::uint64_t>(static_cast<std::int64_t>(bits)));
  return true;
}

// Every byte except 0 is true.
HWY_INLINE std::size_t Bools(const std::uint8_t* HWY_RESTRICT p, std::size_t vectors,
                             KernelSums* sums) {
  const hn::ScalableTag<std::uint8_t> d;
  const U64Tag d64;
  const auto one = hn::Set(d, 1);
  const std::size_t count = vectors * hn::Lanes(d);
  auto total = hn::Zero(d64);
  for (std::size_t v = 0; v < vectors; ++v, p += hn::Lanes(d)) {
    total = hn::Add(total, hn::SumsOf8(hn::Min(hn::LoadU(d, p), one)));
  }
  const std::uint64_t ones = CountOf(total);
  sums->Add({count, count - ones, static_cast<std::int64_t>(ones), ones, ones},
            ones == count ? 1 : 0, ones == 0 ? 0 : 1, ones & 1);
  return vectors;
}

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
