// finding_texts.h: what the daemon has found first in a job, in words that the job reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

// Lifetime: the control file's memory outlives it.
class FindingTexts {
 public:
  explicit FindingTexts(std::byte* control)
      : shared_(reinterpret_cast<layout::FindingText*>(control + layout::kFindingTextOffset)) {}

  struct Found {
    std::uint64_t serial = 0;  // 0: not known, and then it replaces nothing
    std::uint64_t order = 0;
    bool is_of_row = false;  // of an op log: another finding replaces it
  };
  // Whether the job was told of no earlier one of this kind: by the serial of its replay, and then
  // by the slot's order.
  bool IsFirst(layout::FindingKind kind, const Found& found) const;
  // Says what was found, if it is the first.
  void Set(layout::FindingKind kind, const Found& found, std::string_view text);
  // What the job was told; empty: nothing. May be cut if the daemon was killed while it wrote.
  std::string Read(layout::FindingKind kind) const;

 private:
  layout::FindingText& Shared(layout::FindingKind kind) const {
    return shared_[static_cast<std::size_t>(kind)];
  }

  layout::FindingText* shared_;
};

}  // namespace cgdebug::ring
