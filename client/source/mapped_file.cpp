#include "client/source/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "daemon/base/unique_fd.h"

namespace cgdebug::source {

Result<std::shared_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoError("cannot open " + path);
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("cannot read the size of " + path);
  if (!S_ISREG(status.st_mode)) return Error{path + " is no regular file"};
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return std::shared_ptr<MappedFile>(new MappedFile(nullptr, 0));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoError("cannot map " + path);
  return std::shared_ptr<MappedFile>(new MappedFile(static_cast<std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<Values> MapPrivately(const std::string& path, std::uint64_t offset, std::size_t size) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoError("cannot open " + path);
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t before = offset % page_bytes;
  const std::size_t mapped = size + before;
  void* data = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                      fd.get(), static_cast<off_t>(offset - before));
  if (data == MAP_FAILED) return ErrnoError("cannot map " + path);
  return Values{{static_cast<const std::byte*>(data) + before, size},
                std::shared_ptr<const void>(data, [mapped](const void* pages) {
                  ::munmap(const_cast<void*>(pages), mapped);
                })};
}

Values CopyOf(std::span<const std::byte> bytes) {
  auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  return Values{*copy, copy};
}

}  // namespace cgdebug::source
