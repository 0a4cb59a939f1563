#include <algorithm>
#include <limits>
#include <type_traits>

#include "daemon/core/numerics/kernels/cpu.h"
#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/numerics/kernels/ordered_key.h"
#include "daemon/core/numerics/kernels/stats_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/core/numerics/kernels/histogram_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "daemon/core/numerics/kernels/lanes-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace cgdebug::numerics::HWY_NAMESPACE {

// What is compared with the edges: float and double as they are, everything else as ordered keys.
template <typename T>
using Compared = std::conditional_t<std::is_floating_point_v<T>, T, hwy::MakeSigned<Lane<T>>>;

template <typename T>
HWY_INLINE hn::Vec<hn::ScalableTag<Compared<T>>> LoadCompared(const Compared<T>* HWY_RESTRICT p) {
  const hn::ScalableTag<Compared<T>> d;
  const auto bits = hn::LoadU(d, p);
  if constexpr (std::is_unsigned_v<T>) {  // ordered like signed integers of the other half
    return hn::Xor(bits, hn::Set(d, std::numeric_limits<Compared<T>>::min()));
  } else if constexpr (kIsFloatingElement<T> && !std::is_floating_point_v<T>) {
    const auto magnitude = hn::Set(d, std::numeric_limits<Compared<T>>::max());
    return hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), magnitude));
  } else {
    return bits;
  }
}

template <typename T>
Compared<T> EdgeAsCompared(std::int64_t key) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(OrderedKey<T>::ToValue(static_cast<typename OrderedKey<T>::Key>(key)));
  } else {
    const std::int64_t shift = std::is_unsigned_v<T> ? std::numeric_limits<Compared<T>>::min() : 0;
    return static_cast<Compared<T>>(key + shift);
  }
}

// kAll: there may be NaN and Inf.
template <typename T, bool kAll>
std::uint64_t CountEdgesOfType(const std::byte* data, std::uint64_t count, EdgeCounts* counts) {
  const hn::ScalableTag<Compared<T>> d;
  const hn::RebindToSigned<decltype(d)> dc;
  using V = hn::Vec<decltype(d)>;
  const auto edge = [&](std::size_t i)
                        HWY_ATTR { return hn::Set(d, EdgeAsCompared<T>(counts->edges[i])); };
  const V e0 = edge(0), e1 = edge(1), e2 = edge(2), e3 = edge(3), e4 = edge(4), e5 = edge(5),
          e6 = edge(6), highest = hn::Set(d, EdgeAsCompared<T>(counts->highest));
  const auto add = [&](auto& counter, auto mask) HWY_ATTR {
    counter = hn::Sub(counter, hn::BitCast(dc, hn::VecFromMask(d, mask)));
  };
  const auto* p = reinterpret_cast<const Compared<T>*>(data);
  std::uint64_t left = count / hn::Lanes(d);
  while (left > 0) {
    const auto vectors = static_cast<std::size_t>(std::min<std::uint64_t>(left, kBlockVectors<T>));
    auto c0 = hn::Zero(dc), c1 = c0, c2 = c0, c3 = c0, c4 = c0, c5 = c0, c6 = c0, above = c0;
    for (std::size_t v = 0; v < vectors; ++v, p += hn::Lanes(d)) {
      const V x = LoadCompared<T>(p);
      add(c0, hn::Lt(x, e0));
      add(c1, hn::Lt(x, e1));
      add(c2, hn::Lt(x, e2));
      add(c3, hn::Lt(x, e3));
      add(c4, hn::Lt(x, e4));
      add(c5, hn::Lt(x, e5));
      add(c6, hn::Lt(x, e6));
      if constexpr (kAll && std::is_floating_point_v<T>) {
        add(above, hn::Not(hn::Le(x, highest)));  // NaN as well: it is not below anything
      } else if constexpr (kAll) {
        add(above, hn::Gt(x, highest));
      }
    }
    const hn::Vec<decltype(dc)> below[] = {c0, c1, c2, c3, c4, c5, c6};
    for (std::size_t i = 0; i < kInnerEdges; ++i) counts->below[i] += CountOf(below[i]);
    counts->above += CountOf(above);
    left -= vectors;
  }
  return count / hn::Lanes(d) * hn::Lanes(d);
}

std::uint64_t CountEdges(layout::Dtype dtype, const std::byte* data, std::uint64_t count,
                         EdgeCounts* counts) {
  return VisitDtype(dtype, [&](auto element) -> std::uint64_t {
    using T = typename decltype(element)::type;
    if constexpr (std::is_same_v<T, Bool8> || kHasOneNan<T> || kHoldsTwo<T>) {
      return 0;
    } else if constexpr (kIsFloatingElement<T>) {
      return counts->all_finite ? CountEdgesOfType<T, false>(data, count, counts)
                                : CountEdgesOfType<T, true>(data, count, counts);
    } else {
      return CountEdgesOfType<T, false>(data, count, counts);
    }
  });
}

}  // namespace cgdebug::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace cgdebug::numerics {

EdgeKernel ChosenEdgeKernel() {
  switch (ChosenCpu()) {
#if HWY_TARGETS & HWY_AVX2
    case Cpu::kAvx512:  // comparisons into mask registers would make it slower
    case Cpu::kAvx2:
      return N_AVX2::CountEdges;
#endif
#if HWY_TARGETS & HWY_NEON
    case Cpu::kNeon:
      return N_NEON::CountEdges;
#endif
    default:
      return [](layout::Dtype, const std::byte*, std::uint64_t, EdgeCounts*) {
        return std::uint64_t{0};
      };
  }
}

}  // namespace cgdebug::numerics
#endif
