// mapped_file.h: files in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/source/source.h"
#include "daemon/base/result.h"

namespace cgdebug::source {

// A whole file, for reading. One that somebody truncates meanwhile raises SIGBUS.
// Lifetime: unmapped with the last owner.
class MappedFile {
 public:
  // Fails: no regular file, no permission.
  static Result<std::shared_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(std::byte* data, std::size_t size) : data_(data), size_(size) {}

  std::byte* data_;
  std::size_t size_;
};

// Bytes [offset, offset + size) of a file, writable: what is written stays in these pages alone,
// out of the file and of every other mapping. Requires: they are in the file, and size > 0.
Result<Values> MapPrivately(const std::string& path, std::uint64_t offset, std::size_t size);

// The same in memory of our own, for what is too small to be worth pages.
Values CopyOf(std::span<const std::byte> bytes);

inline constexpr std::size_t kWorthMappingBytes = 64 << 10;

}  // namespace cgdebug::source
