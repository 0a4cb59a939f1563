#include "libprobe/ring/payload_checksum.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace cgdebug::ring {
namespace {

// As the kernels of the direct lane add it up, word by word.
std::uint64_t ByDefinition(const std::vector<std::byte>& payload) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; 4 * i < payload.size(); ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, payload.data() + 4 * i, std::min<std::size_t>(4, payload.size() - 4 * i));
    sum += static_cast<std::uint64_t>(word) * static_cast<std::uint32_t>(2 * i + 1);
  }
  return sum;
}

TEST(PayloadChecksum, IsEachWordTimesTheOddNumberOfItsPlace) {
  std::mt19937 random(1);
  for (const std::size_t bytes : {0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 4096, 100'003}) {
    std::vector<std::byte> payload(bytes);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
    EXPECT_EQ(PayloadChecksum(payload.data(), bytes), ByDefinition(payload)) << bytes;
  }
}

TEST(PayloadChecksum, SeesWordsThatChangeOrChangePlaces) {
  alignas(4) std::byte bytes[11] = {};
  for (int i = 0; i < 11; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const std::uint64_t sum = PayloadChecksum(bytes, 11);
  for (int bit = 0; bit < 88; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(PayloadChecksum(bytes, 11), sum) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  std::swap_ranges(bytes, bytes + 4, bytes + 4);
  EXPECT_NE(PayloadChecksum(bytes, 11), sum);
}

#if !defined(CGDEBUG_SANITIZED)  // which look at every word
// The factor has 32 bits, so word 2^31 counts like word 0. Of the 8 GiB only three pages are backed
// by memory.
TEST(PayloadChecksum, BeginsAnewAfterEightGibibytes) {
  constexpr std::uint64_t kPeriod = std::uint64_t{4} << 31;
  constexpr std::uint64_t kBytes = kPeriod + 4096;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* payload = static_cast<std::byte*>(memory);
  payload[0] = payload[kPeriod] = std::byte{5};
  payload[kPeriod - 4] = std::byte{3};
  EXPECT_EQ(PayloadChecksum(payload, kBytes), 5 + 5 + 3 * std::uint64_t{0xffffffff});
  munmap(memory, kBytes);
}
#endif

}  // namespace
}  // namespace cgdebug::ring
