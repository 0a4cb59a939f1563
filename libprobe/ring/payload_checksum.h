// payload_checksum.h: the checksum that a kernel of the direct lane stores and the reader verifies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgdebug::ring {

// The sum of word[i] * (2 * i + 1), without a multiplication per word. Each lane keeps the sum of
// its words and the sum of its running sums; the latter counts a word once per round from its own
// to the last.
inline std::uint64_t WeightedSum(const std::byte* from, std::uint64_t words) {
  using Lanes [[gnu::vector_size(16)]] = std::uint64_t;  // of two words each
  const std::uint64_t rounds = words / 4;
  Lanes low = {}, high = {}, low_sums = {}, high_sums = {};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Lanes pair;
    __builtin_memcpy(&pair, from + round * sizeof(pair), sizeof(pair));
    low += pair & 0xffffffff;
    low_sums += low;
    high += pair >> 32;
    high_sums += high;
  }
  std::uint64_t total = 0;
  for (int lane = 0; lane < 2; ++lane) {
    const std::uint64_t times_round =
        rounds * (low[lane] + high[lane]) - low_sums[lane] - high_sums[lane];
    total += 8 * times_round + (4 * lane + 1) * low[lane] + (4 * lane + 3) * high[lane];
  }
  for (std::uint64_t i = rounds * 4; i < words; ++i) {
    std::uint32_t word;
    __builtin_memcpy(&word, from + 4 * i, sizeof(word));
    total += word * (2 * i + 1);
  }
  return total;
}

// The checksum of a payload, as 32-bit little-endian words, the last one padded with zeros. Each
// word is multiplied by an odd 32-bit number that depends on its place, so that no single changed
// or displaced word goes unnoticed, and threads may add their parts in any order.
inline std::uint64_t PayloadChecksum(const std::byte* payload, std::uint64_t bytes) {
  constexpr std::uint64_t kPeriodWords = std::uint64_t{1} << 31;  // then the factors repeat
  const std::uint64_t words = bytes / 4;
  std::uint64_t sum = 0;
  for (std::uint64_t begin = 0; begin < words; begin += kPeriodWords) {
    const std::uint64_t left = words - begin;
    sum += WeightedSum(payload + 4 * begin, left < kPeriodWords ? left : kPeriodWords);
  }
  if (bytes % 4 != 0) {
    std::uint32_t word = 0;
    __builtin_memcpy(&word, payload + 4 * words, bytes % 4);
    sum += static_cast<std::uint64_t>(word) * static_cast<std::uint32_t>(2 * words + 1);
  }
  return sum;
}

}  // namespace cgdebug::ring
