#include "daemon/core/numerics/kernels/ordered_hash_kernel.h"

#include "daemon/core/numerics/kernels/cpu.h"
#include "proto/layout/ordered_hash.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/core/numerics/kernels/ordered_hash_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

// NEON multiplies no 64 bits by 64: the plain loop is used there.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

std::uint64_t AddOrdered(const std::byte* data, std::uint64_t count, std::uint64_t* sum) {
  const hn::ScalableTag<std::uint64_t> d;
  const hn::Repartition<std::uint32_t, decltype(d)> words;
  const std::size_t lanes = hn::Lanes(d);  // 16 bytes lie in two of them
  const auto* p = reinterpret_cast<const std::uint64_t*>(data);
  const auto in_turn = [&](std::uint64_t even, std::uint64_t odd)
                           HWY_ATTR { return hn::OddEven(hn::Set(d, odd), hn::Set(d, even)); };
  const auto low_factor = in_turn(layout::OrderedFactor(0), layout::OrderedFactor(2));
  const auto high_factor = in_turn(layout::OrderedFactor(1), layout::OrderedFactor(3));
  // What OrderedWeight() begins with, for twice as many bytes as a vector has: lane 2 i is of the
  // i-th 16 bytes of the first half, lane 2 i + 1 of the second half.
  HWY_ALIGN std::uint64_t first[hn::MaxLanes(d)];
  for (std::size_t i = 0; i < lanes; ++i) {
    first[i] = (i / 2 + (i % 2) * lanes / 2 + 1) * layout::kOrderedWeightStep;
  }
  auto begun = hn::Load(d, first);
  const auto step = hn::Set(d, lanes * layout::kOrderedWeightStep);
  const auto mix = hn::Set(d, layout::kOrderedWeightMix);
  auto first_half = hn::Zero(d), second_half = first_half;
  const auto terms = [&](const std::uint64_t* at, auto weights) HWY_ATTR {
    const auto bits = hn::LoadU(d, at);
    const auto low = hn::MulEven(hn::BitCast(words, bits), hn::BitCast(words, low_factor));
    const auto high =
        hn::MulEven(hn::BitCast(words, hn::ShiftRight<32>(bits)), hn::BitCast(words, high_factor));
    return hn::Mul(weights, hn::Add(low, high));
  };
  const std::uint64_t rounds = count / lanes;
  for (std::uint64_t round = 0; round < rounds; ++round, p += 2 * lanes) {
    auto weights = hn::Mul(hn::Xor(begun, hn::ShiftRight<32>(begun)), mix);
    weights = hn::Xor(weights, hn::ShiftRight<32>(weights));
    first_half = hn::Add(first_half, terms(p, hn::InterleaveLower(d, weights, weights)));
    second_half = hn::Add(second_half, terms(p + lanes, hn::InterleaveUpper(d, weights, weights)));
    begun = hn::Add(begun, step);
  }
  *sum += hn::GetLane(hn::SumOfLanes(d, hn::Add(first_half, second_half)));
  return rounds * lanes;
}

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace cgdebug::numerics {

OrderedKernel ChosenOrderedKernel() {
  switch (ChosenCpu()) {
#if HWY_TARGETS & HWY_AVX3
    case Cpu::kAvx512:
      return N_AVX3::AddOrdered;
#endif
#if HWY_TARGETS & HWY_AVX2
    case Cpu::kAvx2:
      return N_AVX2::AddOrdered;
#endif
    default:
      return [](const std::byte*, std::uint64_t, std::uint64_t*) { return std::uint64_t{0}; };
  }
}

}  // namespace cgdebug::numerics
#endif
