#include "client/source/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

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
  // Writable because NumPy and torch warn about memory that is not; private, so it costs nothing
  // until somebody writes.
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoError("cannot map " + path);
  return std::shared_ptr<MappedFile>(new MappedFile(static_cast<std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace cgdebug::source
