#include "daemon/core/recording/catalogue/catalogue_seal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "daemon/core/base/regular_file.h"
#include "daemon/core/recording/files/checksum.h"

namespace cgdebug::recording {
namespace {

constexpr std::uint64_t kMagic = 0x316c616573676463;  // "cdgseal1"
constexpr std::size_t kPartBytes = 256 << 10;

struct SealBytes {
  std::uint64_t magic;
  std::uint64_t bytes;
  std::uint64_t hash;
  std::array<char, 32> recording;
  std::uint32_t version;
  std::uint32_t crc32c;  // of what is before it
};

std::uint32_t CrcOf(const SealBytes& seal) {
  return Crc32c(std::as_bytes(std::span(&seal, 1)).first(offsetof(SealBytes, crc32c)));
}

}  // namespace

std::string SealPath(const std::string& catalogue) { return catalogue + ".seal"; }

std::optional<Seal> MakeSeal(const std::string& recording, std::uint64_t bytes,
                             const ReadBytes& read) {
  Xxh3Parts sum;
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kPartBytes, bytes));
  for (std::uint64_t done = 0; done < bytes;) {
    const std::span part =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes - done));
    if (!read(done, part)) return std::nullopt;
    sum.Add(part);
    done += part.size();
  }
  return Seal{bytes, sum.Sum(), recording};
}

std::optional<Seal> ReadSeal(const std::string& catalogue) {
  const auto fd = OpenRegularFile(SealPath(catalogue), O_RDONLY | O_NOFOLLOW);
  SealBytes bytes = {};
  struct stat status = {};
  if (!fd.ok() || fstat(fd->get(), &status) != 0 || status.st_size != sizeof(bytes) ||
      ReadAt(fd->get(), 0, std::as_writable_bytes(std::span(&bytes, 1))) != sizeof(bytes)) {
    return std::nullopt;
  }
  if (bytes.magic != kMagic || bytes.crc32c != CrcOf(bytes)) return std::nullopt;
  return Seal{bytes.bytes, bytes.hash, std::string(bytes.recording.data(), bytes.recording.size())};
}

Result<void> WriteSeal(const std::string& catalogue, const Seal& seal) {
  const std::string path = SealPath(catalogue);
  const auto fd = OpenRegularFile(path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (!fd.ok()) return fd.error();
  SealBytes bytes = {.magic = kMagic,
                     .bytes = seal.bytes,
                     .hash = seal.hash,
                     .recording = {},
                     .version = 1,
                     .crc32c = 0};
  std::memcpy(bytes.recording.data(), seal.recording.data(),
              std::min(seal.recording.size(), bytes.recording.size()));
  bytes.crc32c = CrcOf(bytes);
  if (pwrite(fd->get(), &bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    return ErrnoError("cannot write " + path);
  }
  return {};
}

}  // namespace cgdebug::recording
