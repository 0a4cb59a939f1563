#include "daemon/recording/recording_files.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace cgdebug::recording {
namespace {

constexpr std::string_view kPrefix = "segment-";
constexpr std::string_view kSuffix = ".cgd";

std::string LockPath(const std::string& directory) { return directory + "/lock"; }

// Open file description locks: the process may open the file again without giving its lock up.
flock WholeFile(short type) {
  flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

std::string SegmentPath(const std::string& directory, std::uint32_t segment) {
  return fmt::format("{}/{}{:06}{}", directory, kPrefix, segment, kSuffix);
}

std::vector<std::string> ListSegments(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) paths.push_back(entry->path());
  }
  // Numbers beyond 999999 are longer.
  std::ranges::sort(paths, [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return paths;
}

Result<UniqueFd> LockForWriting(const std::string& directory) {
  const std::string path = LockPath(directory);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return ErrnoError("cannot open " + path);
  flock lock = WholeFile(F_WRLCK);
  if (fcntl(fd.get(), F_OFD_SETLK, &lock) == 0) return fd;
  if (errno != EAGAIN && errno != EACCES) return ErrnoError("cannot lock " + path);
  return Error{
      fmt::format("another process is writing into {}; choose another directory, or stop it: "
                  "cgdebug-cli record stop",
                  directory)};
}

bool IsBeingWritten(const std::string& directory) {
  const UniqueFd fd(::open(LockPath(directory).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return false;
  flock lock = WholeFile(F_RDLCK);
  return fcntl(fd.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace cgdebug::recording
