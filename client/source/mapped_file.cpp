#include "client/source/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "daemon/base/unique_fd.h"

namespace cgdebug::source {

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
