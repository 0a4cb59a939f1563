// extents.h: the files of another process's segment that hold its slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/ring/segment/shared_file.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

// Opens each when it is first asked for, and keeps it open.
class Extents {
 public:
  // `header`: of the segment's control file. Lifetime: it outlives this.
  Extents(const std::string& segment, const layout::SegmentHeader* header)
      : segment_(segment), header_(header) {}

  // Fails: nullptr with the reason; *may_pass as for SegmentView::Attach().
  const SharedFile* Open(std::uint32_t index, std::string* reason, bool* may_pass = nullptr);
  // The `bytes` that a slot keeps beside its ring, where the registration says.
  // Fails: nullptr with the reason, which begins with `what`.
  std::byte* Beside(const layout::SlotFacts& registration, std::uint64_t bytes,
                    const std::string& what, std::string* reason);
  std::optional<std::vector<std::byte>> CopyBeside(const layout::SlotFacts& registration,
                                                   std::uint64_t bytes, const std::string& what,
                                                   std::string* reason);
  // Of those opened so far.
  std::uint64_t bytes() const;

 private:
  const std::string segment_;
  const layout::SegmentHeader* const header_;
  std::map<std::uint32_t, SharedFile> opened_;
};

}  // namespace cgdebug::ring
