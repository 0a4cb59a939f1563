#include "daemon/metrics/text_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

namespace cgdebug::metrics {
namespace {

constexpr const char* kName = "cgdebug.prom";
constexpr const char* kNewName = "cgdebug.prom.new";  // the collector reads only *.prom
constexpr mode_t kMode = 0644;                        // the collector runs as another user

Result<void> WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoError("write");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> WriteNew(int directory, std::string_view text) {
  const UniqueFd file(
      openat(directory, kNewName, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kMode));
  if (!file) return ErrnoError("open");
  if (fchmod(file.get(), kMode) != 0) return ErrnoError("fchmod");
  return WriteAll(file.get(), text);
}

}  // namespace

Result<TextFile> TextFile::Open(const std::string& directory) {
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoError("--metrics-textfile: cannot open the directory " + directory);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Error{"--metrics-textfile: another daemon writes its metrics into " + directory +
                   ". Give a directory of its own to each"};
    }
    return ErrnoError("--metrics-textfile: cannot lock " + directory);
  }
  const Result<void> can_write = WriteNew(fd.get(), "");
  unlinkat(fd.get(), kNewName, 0);
  if (!can_write.ok()) {
    return Error{"--metrics-textfile: cannot write into " + directory + ": " +
                 can_write.error().message};
  }
  return TextFile(std::move(fd), directory + "/" + kName);
}

TextFile::~TextFile() {
  if (directory_) unlinkat(directory_.get(), kName, 0);
}

Result<void> TextFile::Replace(std::string_view text) const {
  Result<void> written = WriteNew(directory_.get(), text);
  if (written.ok() && renameat(directory_.get(), kNewName, directory_.get(), kName) == 0) {
    return {};
  }
  if (written.ok()) written = ErrnoError("rename");
  unlinkat(directory_.get(), kNewName, 0);
  return Error{"cannot write " + path_ + ": " + written.error().message};
}

}  // namespace cgdebug::metrics
