#include "libprobe/ring/segment/reclaim.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "libprobe/ring/record_lock.h"
#include "libprobe/ring/segment/segment_names.h"
#include "libprobe/ring/segment/shared_file.h"
#include "proto/layout/realtime.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {
namespace {

constexpr double kStartSeconds = 60;  // longer than any process needs to make its control file

// A regular file of this user, read with pread(): if it is truncated meanwhile, that is a short
// read, where a mapping would raise SIGBUS.
class OwnFile {
 public:
  explicit OwnFile(const std::string& name)
      : fd_(open(ShmPath(name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    struct stat info = {};
    ok_ = fd_ >= 0 && fstat(fd_, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
  }
  ~OwnFile() {
    if (fd_ >= 0) close(fd_);
  }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;

  bool ok() const { return ok_; }
  int fd() const { return fd_; }

  template <typename T>
  bool Read(std::uint64_t offset, T* out) const {
    return ok_ && pread(fd_, out, sizeof(T), static_cast<off_t>(offset)) ==
                      static_cast<ssize_t>(sizeof(T));
  }

 private:
  int fd_;
  bool ok_;
};

// CLOCK_REALTIME of the segment's newest snapshot, or `since_ns` if it has none that is newer.
std::int64_t LastSnapshotNs(const OwnFile& control, const std::string& name,
                            std::int64_t since_ns) {
  layout::ProducerLine producer = {};
  if (!control.Read(layout::kProducerLineOffset, &producer)) return since_ns;
  std::map<std::uint32_t, OwnFile> extents;
  const auto slots = std::min<std::uint64_t>(producer.slot_count, layout::kMaxSlots);
  for (std::uint64_t i = 0; i < slots; ++i) {
    layout::DirectoryEntry entry = {};
    layout::SlotHead head = {};
    const std::uint64_t offset = layout::kDirectoryOffset + i * sizeof(entry);
    if (!control.Read(offset, &entry)) break;
    const auto state = layout::DirectoryState(entry.word);
    if (state != layout::SlotState::kLive && state != layout::SlotState::kRetired) continue;
    if (entry.extent == 0) continue;
    if (extents.size() >= layout::kMaxExtents) break;
    const OwnFile& extent =
        extents.try_emplace(entry.extent, name + "." + std::to_string(entry.extent)).first->second;
    if (!extent.Read(entry.offset + layout::kSlotHeadOffset, &head)) continue;
    since_ns = std::max(since_ns, head.last_timestamp_ns);
  }
  return since_ns;
}

// CLOCK_REALTIME of the last snapshot of a segment whose producer is dead and that no daemon has
// open. `control` then holds the producer's lock.
std::optional<std::int64_t> LastOfDead(const OwnFile& control, const std::string& name) {
  layout::SegmentHeader header = {};
  if (!control.Read(0, &header) || header.magic != layout::kSegmentMagic ||
      header.abi_major != layout::kAbiMajor) {
    return std::nullopt;
  }
  // Take the lock instead of asking who holds it: only its owner knows that the producer is dead.
  if (!TryLockByte(control.fd(), layout::kProducerLockByte) ||
      LockedByOther(control.fd(), layout::kReaderLockByte)) {
    return std::nullopt;
  }
  return LastSnapshotNs(control, name, header.created_ns);
}

void ReclaimSegment(const std::string& name, double age_s) {
  const OwnFile control(name);
  const std::optional<std::int64_t> last_ns = LastOfDead(control, name);
  if (!last_ns) return;
  // As double, which holds the difference of any two times.
  const double age_ns = static_cast<double>(layout::RealtimeNs()) - static_cast<double>(*last_ns);
  if (age_ns > age_s * 1e9) UnlinkSegment(name);
}

// The process that makes the file locks it, checks that it still has its name, and renames it. So
// either the lock is taken here first and that process starts again, or that process lives and
// holds it. A young file is left alone: where many jobs start, none should have to start again and
// again.
void ReclaimTemporary(const std::string& name, double age_s) {
  const OwnFile file(name);
  struct stat info = {};
  if (!file.ok() || fstat(file.fd(), &info) != 0) return;
  const double age = static_cast<double>(layout::RealtimeNs()) * 1e-9 -
                     static_cast<double>(info.st_mtim.tv_sec);  // any time fits
  if (age < std::min(age_s, kStartSeconds)) return;
  if (TryLockByte(file.fd(), layout::kProducerLockByte)) unlink(ShmPath(name).c_str());
}

// A producer names its control file before it makes the first extent. So if the control file is
// missing now, it is gone, and the extent is left over.
void ReclaimExtent(const std::string& name, const std::string& control) {
  struct stat info = {};
  if (lstat(ShmPath(control).c_str(), &info) != 0 && errno == ENOENT) unlink(ShmPath(name).c_str());
}

}  // namespace

void ReclaimDeadSegments(double age_s, const IsOpenHere& is_open_here) noexcept {
  try {
    for (const std::string& name : ListShm()) {
      if (IsControlName(name)) {
        if (!is_open_here || !is_open_here(name)) ReclaimSegment(name, age_s);
      } else if (IsTemporaryName(name)) {
        ReclaimTemporary(name, age_s);
      } else if (const auto control = ControlNameOfExtent(name); !control.empty()) {
        ReclaimExtent(name, std::string(control));
      }
    }
  } catch (const std::bad_alloc&) {  // the next job reclaims it
  }
}

void EvictDeadSegments(std::uint64_t bytes, const IsOpenHere& is_open_here) noexcept try {
  const auto is_enough = [bytes] { return GetShmSpace().free_bytes >= static_cast<double>(bytes); };
  if (is_enough()) return;
  std::vector<std::pair<std::int64_t, std::string>> dead;  // oldest first
  for (const std::string& name : ListShm()) {
    if (const auto control = ControlNameOfExtent(name); !control.empty()) {
      ReclaimExtent(name, std::string(control));
    } else if (IsControlName(name) && !(is_open_here && is_open_here(name))) {
      const OwnFile file(name);
      if (const auto last_ns = LastOfDead(file, name)) dead.emplace_back(*last_ns, name);
    }
  }
  std::sort(dead.begin(), dead.end());
  for (const auto& [last_ns, name] : dead) {
    if (is_enough()) return;
    const OwnFile control(name);  // a daemon may have found it meanwhile
    if (LastOfDead(control, name)) UnlinkSegment(name);
  }
} catch (const std::bad_alloc&) {  // what was evicted so far must be enough
}

}  // namespace cgdebug::ring
