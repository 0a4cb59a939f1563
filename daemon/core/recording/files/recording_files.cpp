#include "daemon/core/recording/files/recording_files.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "daemon/core/base/regular_file.h"
#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/files/remote_files.h"

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

struct NoteBytes {
  std::uint64_t magic;
  std::uint64_t offset;
  std::uint32_t segment;
  std::uint32_t crc32c;  // of what is before it
};
constexpr std::uint64_t kNoteMagic = 0x3165746f6e646763;  // "cgdnote1"

std::uint32_t CrcOf(const NoteBytes& note) {
  return Crc32c(std::as_bytes(std::span(&note, 1)).first(offsetof(NoteBytes, crc32c)));
}

}  // namespace

std::string SegmentPath(const std::string& directory, std::uint32_t segment) {
  return fmt::format("{}/{}{:06}{}", directory, kPrefix, segment, kSuffix);
}

bool IsSegmentName(std::string_view name) {
  return name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

bool IsNameOfSegment(const std::string& path, std::uint32_t segment) {
  return path == SegmentPath(path.substr(0, path.rfind('/')), segment);
}

namespace {

// Numbers beyond 999999 are longer.
std::vector<std::string> InOrder(std::vector<std::string> paths) {
  std::ranges::sort(paths, [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return paths;
}

Result<std::vector<std::string>> ListRemoteSegments(const std::string& url) {
  const Result<RemoteFiles*> files = FindRemoteFiles(url);
  if (!files.ok()) return files.error();
  const auto entries = (*files)->List(url);
  if (!entries.ok()) return entries.error();
  std::vector<std::string> paths;
  for (const RemoteEntry& entry : entries->value_or(std::vector<RemoteEntry>())) {
    if (!entry.is_folder && IsSegmentName(entry.name)) paths.push_back(url + "/" + entry.name);
  }
  return InOrder(std::move(paths));
}

}  // namespace

Result<std::vector<std::string>> ListSegments(const std::string& directory) {
  if (IsUrl(directory)) return ListRemoteSegments(directory);
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (IsSegmentName(entry->path().filename().string())) paths.push_back(entry->path());
  }
  const bool absent =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !absent) return ErrnoError("cannot read " + directory, error.value());
  return InOrder(std::move(paths));
}

Result<UniqueFd> LockForWriting(const std::string& directory) {
  const std::string path = LockPath(directory);
  auto fd = OpenRegularFile(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (!fd.ok()) return fd.error();
  flock lock = WholeFile(F_WRLCK);
  if (fcntl(fd->get(), F_OFD_SETLK, &lock) == 0) return fd;
  if (errno != EAGAIN && errno != EACCES) return ErrnoError("cannot lock " + path);
  return Error{
      fmt::format("another process is writing into {}; choose another directory, or stop it: "
                  "cgdebug-cli record stop",
                  directory)};
}

// A note that cannot be written costs the next reader time, nothing else.
void WriteIndexNote(const UniqueFd& lock, const IndexNote& note) {
  NoteBytes bytes = {kNoteMagic, note.offset, note.segment, 0};
  bytes.crc32c = CrcOf(bytes);
  [[maybe_unused]] const ssize_t written = pwrite(lock.get(), &bytes, sizeof(bytes), 0);
}

std::optional<IndexNote> ReadIndexNote(const std::string& directory) {
  if (IsUrl(directory)) return std::nullopt;
  const auto fd = OpenRegularFile(LockPath(directory), O_RDONLY);
  NoteBytes bytes = {};
  if (!fd.ok() ||
      pread(fd->get(), &bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    return std::nullopt;
  }
  if (bytes.magic != kNoteMagic || bytes.crc32c != CrcOf(bytes)) return std::nullopt;
  return IndexNote{bytes.segment, bytes.offset};
}

bool IsBeingWritten(const std::string& directory) {
  if (IsUrl(directory)) return false;  // segments are copied there when they are whole
  const auto fd = OpenRegularFile(LockPath(directory), O_RDONLY);
  if (!fd.ok()) return false;
  flock lock = WholeFile(F_RDLCK);
  return fcntl(fd->get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace cgdebug::recording
