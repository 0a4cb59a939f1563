// checksum.h: the two checksums of a recording: CRC32C over headers and meta, checked before they
// are used, and XXH3-64 over payloads, checked before they are returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cgdebug::recording {

// Castagnoli, as iSCSI and ext4 use it; `crc` continues an earlier one.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

std::uint64_t Xxh3(std::span<const std::byte> bytes);

// Xxh3 of bytes that come one part after another.
class Xxh3Parts {
 public:
  Xxh3Parts();
  void Add(std::span<const std::byte> part);
  std::uint64_t Sum() const;

 private:
  static constexpr std::size_t kStateBytes = 640;
  alignas(64) std::byte state_[kStateBytes];
};

}  // namespace cgdebug::recording
