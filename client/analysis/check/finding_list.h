// finding_list.h: the findings of `check` while it looks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "client/analysis/check/check.h"

namespace cgdebug::analysis {

// One probe's findings of one kind, growing with its snapshots.
struct FindingRun {
  std::optional<Finding> finding;

  void Add(FindingKind kind, std::size_t slot, std::uint64_t replay, double worst = 0) {
    if (!finding) finding = Finding{.kind = kind, .slot = slot, .first_replay = replay};
    finding->last_replay = replay;
    ++finding->count;
    finding->worst = std::max(finding->worst, worst);
  }
};

// At most one finding of each kind for a slot.
class FindingList {
 public:
  void Add(Finding finding) {
    place_of_[{finding.slot, finding.kind}] = findings_.size();
    findings_.push_back(std::move(finding));
  }
  void Add(const FindingRun& run) {
    if (run.finding) Add(*run.finding);
  }
  // Null if there is none. Lifetime: until the next Add().
  Finding* Find(std::size_t slot, FindingKind kind) {
    const auto found = place_of_.find({slot, kind});
    return found == place_of_.end() ? nullptr : &findings_[found->second];
  }
  // By kind, then in the order in which they were added.
  std::vector<Finding> Take() {
    std::ranges::stable_sort(findings_, {}, &Finding::kind);
    return std::move(findings_);
  }

 private:
  std::vector<Finding> findings_;
  std::map<std::pair<std::size_t, FindingKind>, std::size_t> place_of_;
};

}  // namespace cgdebug::analysis
