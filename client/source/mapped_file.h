// mapped_file.h: a file in memory, private: what is written into the pages stays out of the file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "daemon/base/result.h"

namespace cgdebug::source {

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

}  // namespace cgdebug::source
