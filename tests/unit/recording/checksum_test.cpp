#include "daemon/core/recording/files/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cgdebug::recording {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Checksum, Crc32cGivesThePublishedValueAndGoesOn) {
  EXPECT_EQ(Crc32c(BytesOf("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(BytesOf("56789"), Crc32c(BytesOf("1234"))), 0xe3069283u);
}

TEST(Checksum, TheVectorsOfThisCpuGiveTheXxh3OfEveryLength) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 131 >> 3);
  for (std::size_t length = 0; length <= bytes.size() - 3; ++length) {
    const auto part = std::span(bytes).subspan(length % 3, length);
    ASSERT_EQ(Xxh3(part), XXH3_64bits(part.data(), part.size())) << length << " bytes";
    Xxh3Parts parts;
    for (std::size_t at = 0; at < length; at += 1000) {
      parts.Add(part.subspan(at, std::min<std::size_t>(1000, length - at)));
    }
    ASSERT_EQ(parts.Sum(), Xxh3(part)) << length << " bytes in parts";
  }
}

}  // namespace
}  // namespace cgdebug::recording
