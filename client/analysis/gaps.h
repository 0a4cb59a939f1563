// gaps.h: what a source says is missing from it, in sentences.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/analysis/diff/align.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

struct GapSummary {
  std::uint64_t count = 0;             // snapshots that are missing; an unknown end counts as one
  std::vector<std::string> sentences;  // one per slot, or for many alike; a missing end
  recording::Account account;          // of all slots in scope, whatever replays are looked at
  // Why more will come, which does not count as missing. Empty if nothing will.
  std::string goes_on;
};

// Whether the slot has a snapshot of the replays in scope, as far as that can be read.
bool RanIn(source::Source& source, const Scope& scope, std::size_t slot);

// seen: by slot, how many snapshots the reader saw before the source let them go, which are not
// missing.
GapSummary SummarizeGaps(source::Source& source, const Scope& scope,
                         const std::map<std::size_t, std::uint64_t>& seen = {});
// The same without what OpGapsOf() says, for an answer that has it already.
GapSummary SummarizeOtherGaps(source::Source& source, const Scope& scope);

// Reads every snapshot without its values and adds those that cannot be read: an index may name
// them, but they are missing too. For commands that do not read the snapshots themselves.
void AddUnreadable(source::Source& source, const Scope& scope, GapSummary* summary);

// Everything that is missing, in sentences; empty if the source is complete.
std::vector<std::string> WhyNotComplete(source::Source& source);

}  // namespace cgdebug::analysis
