// ordered_hash.h: a hash of a tensor that knows where each element is. The XOR of the elements and
// all other statistics are the same for the same elements in any order.
//
// It is a hash of the bytes that the tensor has with its elements one behind the other in their
// logical (row-major) order, so the layout in memory does not matter. Of these bytes, seen as words
// of 32 bits, word j of the n-th 16 bytes is multiplied by kOrderedFactors[j] and OrderedWeight(n).
// The products are added mod 2^64; the upper 32 bits of the sum are the hash. Threads may add their
// parts, and the bytes of a word, in any order.
//
// What collides. The weights have no structure, so tensors that differ for any reason but an attack
// (rows, columns or heads in another order, exchanged elements, flipped signs, other values) have
// the same hash with a probability of about 2^-31. It is not cryptographic: the sum is linear in
// the words, and whoever wants two tensors to collide can compute them. Elements of 0 bits behind
// the others add nothing, so shape and dtype have to be compared as well. The bits count: -0 is not
// 0. But every NaN counts as the same one (OrderedBits), because NaNs have many bit patterns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/layout/dtype.h"

namespace cgdebug::layout {

// Of word j of 16 bytes.
constexpr std::uint64_t OrderedFactor(unsigned j) {
  return j < 2 ? (j == 0 ? 0x9e3779b1 : 0x85ebca77) : (j == 2 ? 0xc2b2ae3d : 0x27d4eb2f);
}

constexpr std::uint64_t kOrderedWeightStep = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kOrderedWeightMix = 0xd6e8feb86659fd93;

// Of the n-th 16 bytes. All bits of a product count from its 32nd on, so the weight is a mix of all
// bits of n; neighbours, and sums and differences of them, look like random numbers.
constexpr std::uint64_t OrderedWeight(std::uint64_t n) {
  std::uint64_t weight = (n + 1) * kOrderedWeightStep;
  weight = (weight ^ weight >> 32) * kOrderedWeightMix;
  return weight ^ weight >> 32;
}

// What the n-th 16 bytes add, as words.
constexpr std::uint64_t OrderedTerm(std::uint64_t n, std::uint32_t a, std::uint32_t b,
                                    std::uint32_t c, std::uint32_t d) {
  return OrderedWeight(n) * (a * OrderedFactor(0) + b * OrderedFactor(1) + c * OrderedFactor(2) +
                             d * OrderedFactor(3));
}

// What an element adds: `Raw` is an unsigned integer of its size. `index`: in logical order.
template <typename Raw>
constexpr std::uint64_t OrderedTermOf(std::uint64_t index, Raw bits) {
  constexpr unsigned kPerVector = 16 / sizeof(Raw);
  const auto place = static_cast<unsigned>(index % kPerVector) * unsigned{sizeof(Raw)};  // in bytes
  const std::uint64_t weight = OrderedWeight(index / kPerVector);
  if constexpr (sizeof(Raw) == 8) {
    return weight * ((bits & 0xffffffff) * OrderedFactor(place / 4) +
                     (bits >> 32) * OrderedFactor(place / 4 + 1));
  } else {
    return weight * ((std::uint64_t{bits} << place % 4 * 8) * OrderedFactor(place / 4));
  }
}

// The largest magnitude of a type that is no NaN, as bits.
constexpr std::uint64_t LargestOrderedBits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return 0x7c00;
    case Dtype::kBfloat16:
      return 0x7f80;
    case Dtype::kFloat32:
      return 0x7f800000;
    case Dtype::kFloat64:
      return 0x7ff0000000000000;
    case Dtype::kFloat8E4m3fn:
      return 0x7e;
    case Dtype::kFloat8E5m2:
      return 0x7c;
    default:
      return ~std::uint64_t{0};
  }
}

// What stands for an element: its bits, or for a NaN all bits but the sign. `largest`: as
// LargestOrderedBits().
template <typename Raw>
constexpr Raw OrderedBits(Raw bits, std::uint64_t largest) {
  constexpr Raw kMagnitude = static_cast<Raw>(static_cast<Raw>(~Raw{0}) >> 1);
  return (bits & kMagnitude) > largest ? kMagnitude : bits;
}

constexpr std::uint64_t OrderedHash(std::uint64_t sum) { return sum >> 32; }

// The sum of elements that lie one behind the other in logical order, on the CPU. `may_be_nan`:
// takes longer. `first`: what the 16 bytes before the first-th add is left out.
// Requires: `data` holds `count` elements of a known dtype.
inline std::uint64_t OrderedSum(Dtype dtype, const std::byte* data, std::uint64_t count,
                                bool may_be_nan, std::uint64_t first = 0) {
  const std::size_t element_bytes = DtypeBytes(dtype);
  const std::uint64_t bytes = count * element_bytes, largest = LargestOrderedBits(dtype);
  const auto replace_nans = [&](std::uint32_t(&words)[4], auto raw) {
    decltype(raw) elements[16 / sizeof(raw)];
    std::memcpy(elements, words, sizeof(words));
    for (auto& element : elements) element = OrderedBits(element, largest);
    std::memcpy(words, elements, sizeof(words));
  };
  std::uint64_t sum = 0;
  std::uint32_t words[4];
  const auto add = [&](std::uint64_t n) {
    if (may_be_nan) {
      switch (element_bytes) {
        case 1:
          replace_nans(words, std::uint8_t{});
          break;
        case 2:
          replace_nans(words, std::uint16_t{});
          break;
        case 4:
          replace_nans(words, std::uint32_t{});
          break;
        default:
          replace_nans(words, std::uint64_t{});
      }
    }
    sum += OrderedTerm(n, words[0], words[1], words[2], words[3]);
  };
  for (std::uint64_t n = first; n < bytes / 16; ++n) {
    std::memcpy(words, data + 16 * n, 16);
    add(n);
  }
  if (bytes % 16 != 0) {
    for (std::uint32_t& word : words) word = 0;
    std::memcpy(words, data + bytes / 16 * 16, bytes % 16);
    add(bytes / 16);
  }
  return sum;
}

}  // namespace cgdebug::layout
