#include "daemon/ingest/segment_watcher.h"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "daemon/log/log.h"
#include "daemon/model/text.h"
#include "libprobe/ring/segment/segment_view.h"

namespace cgdebug::ingest {

SegmentWatcher::SegmentWatcher() : inotify_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  if (!inotify_) return;
  if (inotify_add_watch(inotify_.get(), layout::kShmDirectory, IN_MOVED_TO) < 0) {
    Log("ingest")->warn("cannot watch {}: new jobs are found by scanning only",
                        layout::kShmDirectory);
    inotify_.reset();
  }
}

bool SegmentWatcher::Drain() {
  if (!inotify_) return false;
  alignas(inotify_event) char buffer[4096];
  bool any = false;
  ssize_t bytes = 0;
  while ((bytes = read(inotify_.get(), buffer, sizeof(buffer))) > 0) {
    const char* next = buffer;
    while (next < buffer + bytes) {
      inotify_event event;
      std::memcpy(&event, next, sizeof(event));
      const char* name = next + sizeof(event);             // terminated when there is one
      any |= event.len == 0 || ring::IsControlName(name);  // no name: events were dropped
      next += sizeof(event) + event.len;
    }
  }
  return any;
}

SegmentWatcher::Version SegmentWatcher::VersionOf(const std::string& name) {
  struct stat info = {};
  if (lstat(ring::ShmPath(name).c_str(), &info) != 0) return {};
  return {info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

std::vector<std::string> SegmentWatcher::Scan() {
  std::vector<std::string> names = ring::ListSegments();
  std::erase_if(refused_, [&](const auto& refused) {
    return !std::binary_search(names.begin(), names.end(), refused.first);
  });
  std::erase_if(names, [&](const std::string& name) {
    const auto refused = refused_.find(name);
    return refused != refused_.end() && !refused->second.retry &&
           refused->second.version == VersionOf(name);
  });
  return names;
}

void SegmentWatcher::Refuse(const std::string& name, const std::string& reason_untrusted,
                            bool retry) {
  const std::string reason = pipeline::CleanText(reason_untrusted);
  Refused& refused = refused_[name];
  if (refused.reason != reason) {
    Log("ingest")->warn("{} is skipped: {}", ring::ShmPath(name), reason);
  }
  refused = {reason, VersionOf(name), retry};
}

std::vector<pipeline::SkippedFile> SegmentWatcher::skipped() const {
  std::vector<pipeline::SkippedFile> skipped;
  for (const auto& [name, refused] : refused_) {
    if (refused.reason.empty()) continue;
    skipped.push_back({ring::ShmPath(name), refused.reason});
  }
  return skipped;
}

}  // namespace cgdebug::ingest
