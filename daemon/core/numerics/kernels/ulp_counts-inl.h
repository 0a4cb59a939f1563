// ulp_counts-inl.h: distances of a block by bin (UlpBin()). Included once for each CPU, after
// lanes-inl.h. Internal to daemon/core/numerics.
#if defined(CGDEBUG_NUMERICS_ULP_COUNTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CGDEBUG_NUMERICS_ULP_COUNTS_INL_H_
#undef CGDEBUG_NUMERICS_ULP_COUNTS_INL_H_
#else
#define CGDEBUG_NUMERICS_ULP_COUNTS_INL_H_
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/core/numerics/compare.h"
#include "daemon/core/numerics/kernels/compare_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

using Codes = hn::ScalableTag<std::int8_t>;

// Stores code(distance) - `offset` of each distance in one byte. Byte j of lane i in a vector of n
// lanes is element j n + i of the 4 n that it holds.
template <class Code>
HWY_INLINE void PackCodes(const std::uint32_t* HWY_RESTRICT distances, std::size_t count,
                          std::uint8_t offset, const Code& code, std::int8_t* HWY_RESTRICT codes) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::ScalableTag<std::uint8_t> bytes;
  const std::size_t lanes = hn::Lanes(d);
  const auto less = hn::Set(bytes, offset);
  for (std::size_t i = 0; i < count; i += 4 * lanes) {
    const auto part = [&](std::size_t j)
                          HWY_ATTR { return code(hn::Load(d, distances + i + j * lanes)); };
    const auto low = hn::Or(part(0), hn::ShiftLeft<8>(part(1)));
    const auto high = hn::Or(part(2), hn::ShiftLeft<8>(part(3)));
    const auto packed = hn::BitCast(bytes, hn::Or(low, hn::ShiftLeft<16>(high)));
    hn::Store(hn::BitCast(Codes(), hn::SaturatedSub(packed, less)), Codes(), codes + i);
  }
}

using FourCounts = std::array<std::uint64_t, 4>;

// How many codes are above each of the four.
HWY_INLINE FourCounts CountAbove(const std::int8_t* HWY_RESTRICT codes, std::size_t count,
                                 const std::array<int, 4>& ends) {
  const Codes d;
  const hn::ScalableTag<std::uint8_t> du;
  const auto end = [&](std::size_t i)
                       HWY_ATTR { return hn::Set(d, static_cast<std::int8_t>(ends[i])); };
  const auto e0 = end(0), e1 = end(1), e2 = end(2), e3 = end(3);
  auto c0 = hn::Zero(d), c1 = c0, c2 = c0, c3 = c0;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto code = hn::Load(d, codes + i);
    c0 = hn::Sub(c0, hn::VecFromMask(d, hn::Gt(code, e0)));
    c1 = hn::Sub(c1, hn::VecFromMask(d, hn::Gt(code, e1)));
    c2 = hn::Sub(c2, hn::VecFromMask(d, hn::Gt(code, e2)));
    c3 = hn::Sub(c3, hn::VecFromMask(d, hn::Gt(code, e3)));
  }
  const auto total = [&](auto v) HWY_ATTR { return CountOf(hn::SumsOf8(hn::BitCast(du, v))); };
  return {total(c0), total(c1), total(c2), total(c3)};
}

// Adds the few distances whose code is above `end`, one by one.
HWY_INLINE void CountFew(const std::uint32_t* HWY_RESTRICT distances,
                         const std::int8_t* HWY_RESTRICT codes, std::size_t count, int end,
                         BlockComparison* block) {
  const Codes d;
  const std::size_t lanes = hn::Lanes(d) / 4;
  const auto last = hn::Set(d, static_cast<std::int8_t>(end));
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    std::uint64_t bits = 0;
    std::uint8_t mask[8] = {};
    hn::StoreMaskBits(d, hn::Gt(hn::Load(d, codes + i), last), mask);
    std::memcpy(&bits, mask, sizeof(bits));
    for (; bits != 0; bits &= bits - 1) {
      const auto byte = static_cast<std::size_t>(std::countr_zero(bits));
      ++block->ulp[UlpBin(distances[i + byte % 4 * lanes + byte / 4])];
    }
  }
}

// Requires: room for a multiple of four vectors at `distances`.
HWY_INLINE void CountDistances(std::uint32_t* HWY_RESTRICT distances, std::size_t count,
                               std::uint32_t greatest, BlockComparison* block) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToFloat<decltype(d)> df;
  constexpr std::size_t kNear = 4, kFew = 256;  // bins of nearby distances, far distances
  HWY_ALIGN std::int8_t codes[kCompareBlock];
  const std::size_t padded = (count + 4 * hn::Lanes(d) - 1) / (4 * hn::Lanes(d)) * 4 * hn::Lanes(d);
  for (std::size_t i = count; i < padded; i += hn::Lanes(d))
    hn::Store(hn::Zero(d), d, distances + i);
  const auto near = [&](auto distance) HWY_ATTR { return hn::Min(distance, hn::Set(d, 127)); };
  PackCodes(distances, padded, 0, near, codes);
  FourCounts above = CountAbove(codes, padded, {0, 1, 2, 4});
  std::uint64_t left = count;
  for (std::size_t bin = 0; bin < kNear; ++bin) {
    block->ulp[bin] += left - above[bin];
    left = above[bin];
  }
  if (left <= kFew) {
    if (left > 0) CountFew(distances, codes, padded, UlpBinEnd(kNear - 1), block);
    return;
  }
  // The exponent of distance - 1 as a float, -2^31 for 2^31 and more. The bit below the top one is
  // cleared, so that the conversion does not round up to the next exponent.
  const auto exponent = [&](auto distance) HWY_ATTR {
    const auto one = hn::Set(d, 1);
    const auto less = hn::Min(hn::Sub(hn::Max(distance, one), one), hn::Set(d, 0x80000000u));
    const auto top = hn::AndNot(hn::ShiftRight<1>(less), less);
    const auto bits = hn::BitCast(d, hn::ConvertTo(df, hn::BitCast(di, top)));
    return hn::And(hn::ShiftRight<23>(bits), hn::Set(d, 0xff));
  };
  PackCodes(distances, padded, 125, exponent, codes);
  std::uint64_t counted = 0;
  for (int bin = static_cast<int>(UlpBin(greatest)); counted < left; bin -= 4) {
    above = CountAbove(codes, padded, {bin - 1, bin - 2, bin - 3, bin - 4});
    for (int i = 0; i < 4 && bin - i >= static_cast<int>(kNear); ++i) {
      block->ulp[static_cast<std::size_t>(bin - i)] += above[static_cast<std::size_t>(i)] - counted;
      counted = above[static_cast<std::size_t>(i)];
    }
  }
}

// Counts the distances of doubles, those of nearby ones in vectors.
HWY_INLINE void CountDistances(const std::uint64_t* HWY_RESTRICT distances, std::size_t count,
                               std::uint64_t greatest, BlockComparison* block) {
  using Distance = std::uint64_t;
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
  // The far ones one by one. Four tables, because an increment waits for the one before it of the
  // same counter.
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

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
