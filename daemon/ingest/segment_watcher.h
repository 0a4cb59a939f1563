// segment_watcher.h: which segments there are, and which of them must not be read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/core/base/unique_fd.h"
#include "daemon/model/registry.h"

namespace cgdebug::ingest {

// A refused file is tried again only when it changes, so rubbish costs one look.
//
// Thread: the ingest thread.
class SegmentWatcher {
 public:
  SegmentWatcher();

  // Becomes readable when something appears in /dev/shm; -1 if inotify does not work. inotify does
  // not see what other mount namespaces create, so scan from time to time as well.
  int fd() const { return inotify_.get(); }
  // Empties the descriptor. Returns true if a file appeared that may be a segment; other programs'
  // files come and go there all the time.
  bool Drain();

  // Names of control files, except those that are refused.
  std::vector<std::string> Scan();
  // `retry`: look at it again at the next scan.
  void Refuse(const std::string& name, const std::string& reason, bool retry);
  std::vector<pipeline::SkippedFile> skipped() const;

 private:
  struct Version {  // of a file: if it differs, the content most likely differs too
    ino_t inode = 0;
    off_t bytes = 0;
    std::int64_t changed_s = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const Version&) const = default;
  };
  struct Refused {
    std::string reason;
    Version version;
    bool retry = false;
  };
  static Version VersionOf(const std::string& name);

  UniqueFd inotify_;
  std::map<std::string, Refused> refused_;
};

}  // namespace cgdebug::ingest
