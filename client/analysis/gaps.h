// gaps.h: what a source says is missing from it, in sentences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/analysis/align.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

struct GapSummary {
  std::uint64_t count = 0;             // snapshots that are missing; an unknown end counts as one
  std::vector<std::string> sentences;  // one a slot, and one for an end that is missing
};

GapSummary SummarizeGaps(source::Source& source, const Scope& scope);

}  // namespace cgdebug::analysis
