// op_runs.h: where two runs begin to differ, over all replays of their op logs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/analysis/ops/op_diff.h"
#include "client/analysis/ops/op_log.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::analysis {

// The comparison of two runs, replay by replay in the order of A, up to the first that differs.
struct OpRunsDiff {
  OpLog a, b;   // of the replay that differs, else of the first that is inconclusive, else the last
  OpDiff diff;  // of these two
  std::size_t pairs = 0;     // of replays that run A and run B both have
  std::size_t compared = 0;  // of these, up to the one that differs
  std::size_t rows = 0;      // compared in them
  // Sentences about what only one of the two has, and about what either of them lacks.
  std::vector<std::string> missing = {};
  // Likewise about replays before the one that differs, of which not all could be compared.
  std::vector<std::string> earlier = {};
  // The two have one log each, of different names, and only their newest replays were compared.
  bool is_newest_alone = false;

  OpDiff::Verdict verdict() const {
    if (diff.different > 0) return OpDiff::Verdict::kDifferent;
    return missing.empty() ? diff.verdict() : OpDiff::Verdict::kInconclusive;
  }
};

// Pairs the n-th log of a name in A with the n-th of it in B, and replays by number. If each has
// one log, and they have different names, as an eager run and a graph have, these two are a pair:
// by number if they have the same replays, else the newest alone. What the rest of these logs lacks
// is in the account, too: their replays are the same only if all of them were seen. `graph_a`,
// `graph_b`: as OpLogChoice::graph. Fails: a source without an op log.
Result<OpRunsDiff> DiffOpRuns(source::Source& a, const std::string& graph_a, source::Source& b,
                              const std::string& graph_b);

Answer OpRunsAnswer(const OpRunsDiff& runs);
// The fields of OpDiffJson(), and those of the runs.
Json OpRunsJson(const OpRunsDiff& runs);

}  // namespace cgdebug::analysis
