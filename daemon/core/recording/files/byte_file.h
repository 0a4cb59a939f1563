// byte_file.h: the bytes of one file, on a disk of this machine or behind a URL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug::recording {

// Thread: any.
class ByteFile {
 public:
  // Fails: not there, not a regular file, a URL that cannot be read here.
  static Result<std::unique_ptr<ByteFile>> Open(const std::string& path);

  ByteFile() = default;
  virtual ~ByteFile() = default;
  ByteFile(const ByteFile&) = delete;
  ByteFile& operator=(const ByteFile&) = delete;

  virtual Result<std::uint64_t> Size() const = 0;
  // Reads as many bytes as there are, up to the buffer's size.
  // Fails: there may be more, but they could not be fetched. Never of a file on a disk, where what
  // cannot be read counts as damaged.
  virtual Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> buffer) const = 0;
  // The descriptor to map, or -1.
  virtual int fd() const { return -1; }
  // How much to ask for at once when many bytes are read in a row.
  virtual std::size_t part_bytes() const = 0;
};

}  // namespace cgdebug::recording
