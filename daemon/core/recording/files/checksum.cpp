#include "daemon/core/recording/files/checksum.h"

#include <array>
#include <cstring>
#include <new>

#include "daemon/core/recording/files/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cgdebug::recording {
namespace {

constexpr std::array<std::uint32_t, 256> MakeTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = MakeTable();

std::uint32_t ByTable(std::span<const std::byte> bytes, std::uint32_t crc) {
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t ByInstruction(std::span<const std::byte> bytes,
                                                              std::uint32_t crc) {
  std::uint64_t wide = crc;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    wide = __builtin_ia32_crc32di(wide, word);
  }
  return ByTable(bytes.subspan(at), static_cast<std::uint32_t>(wide));
}
#endif

}  // namespace

std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~ByInstruction(bytes, ~crc);
#endif
  return ~ByTable(bytes, ~crc);
}

#if defined(__x86_64__)
namespace {
bool HasAvx2() {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  return has_avx2;
}
}  // namespace
#endif

std::uint64_t Xxh3(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (HasAvx2()) return Xxh3Avx2(bytes.data(), bytes.size());
#endif
  return XXH3_64bits(bytes.data(), bytes.size());
}

Xxh3Parts::Xxh3Parts() {
  static_assert(sizeof(XXH3_state_t) <= kStateBytes && alignof(XXH3_state_t) <= 64);
  XXH3_64bits_reset(new (state_) XXH3_state_t);
}

void Xxh3Parts::Add(std::span<const std::byte> part) {
#if defined(__x86_64__)
  if (HasAvx2()) return Xxh3AddAvx2(state_, part.data(), part.size());
#endif
  XXH3_64bits_update(std::launder(reinterpret_cast<XXH3_state_t*>(state_)), part.data(),
                     part.size());
}

std::uint64_t Xxh3Parts::Sum() const {
  return XXH3_64bits_digest(std::launder(reinterpret_cast<const XXH3_state_t*>(state_)));
}

}  // namespace cgdebug::recording
