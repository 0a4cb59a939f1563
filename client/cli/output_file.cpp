#include "client/cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "client/cli/context.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug::cli {
namespace {

Result<void> WriteAll(int fd, const std::string& path, std::string_view header,
                      std::string_view payload) {
  for (std::string_view part : {header, payload}) {
    while (!part.empty()) {
      const ssize_t written = ::write(fd, part.data(), part.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoError("cannot write " + path);
      part.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  return {};
}

// Some file systems say only then that a write failed.
Result<void> Close(UniqueFd fd, const std::string& path) {
  if (::close(fd.release()) != 0) return ErrnoError("cannot write " + path);
  return {};
}

// In place of the file at `path`, which stays until the new one is whole.
Result<void> Replace(const std::string& path, mode_t mode, std::string_view header,
                     std::string_view payload) {
  // A link stays one.
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  if (real == nullptr) return ErrnoError("cannot create " + path);
  std::string name = fmt::format("{}.XXXXXX", real.get());
  UniqueFd fd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd) return ErrnoError("cannot create " + name);
  Result<void> written = WriteAll(fd.get(), path, header, payload);
  if (written.ok() && ::fchmod(fd.get(), mode & 07777) != 0) {
    written = ErrnoError("cannot write " + path);
  }
  if (written.ok()) written = Close(std::move(fd), path);
  if (written.ok() && ::rename(name.c_str(), real.get()) != 0) {
    written = ErrnoError("cannot write " + path);
  }
  if (!written.ok()) ::unlink(name.c_str());
  return written;
}

}  // namespace

Result<void> WriteFile(const std::string& path, bool force, std::string_view header,
                       std::string_view payload) {
  if (path == "-") {
    Context::PrintRaw(header);
    Context::PrintRaw(payload);
    return {};
  }
  struct stat there {};
  const bool exists = ::stat(path.c_str(), &there) == 0;
  if (exists && force && S_ISREG(there.st_mode)) {
    return Replace(path, there.st_mode, header, payload);
  }
  // What a pipe or a device has got cannot be taken back.
  const bool is_new = !exists;
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (force ? 0 : O_EXCL);
  UniqueFd fd(::open(path.c_str(), flags, 0666));
  if (!fd && errno == EEXIST) {
    return Error{fmt::format("{} exists. To overwrite it, add: -f", path)};
  }
  if (!fd) return ErrnoError("cannot create " + path);
  Result<void> written = WriteAll(fd.get(), path, header, payload);
  if (written.ok()) written = Close(std::move(fd), path);
  if (!written.ok() && is_new) ::unlink(path.c_str());
  return written;
}

}  // namespace cgdebug::cli
