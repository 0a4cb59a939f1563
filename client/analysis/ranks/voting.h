// voting.h: compares replicas, position by position, and says which ranks differ from most.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "client/analysis/ranks/missing.h"
#include "client/analysis/ranks/rank_rows.h"
#include "client/analysis/ranks/ranks.h"
#include "client/analysis/ranks/ranks_state.h"

namespace cgdebug::analysis {

// Lifetime: all outlive it.
class Voting {
 public:
  Voting(const RanksOptions& options, const AreWithin& are_within, const RankRows& rows,
         MissingReplicas* missing, RanksReport* report)
      : options_(options),
        are_within_(are_within),
        rows_(rows),
        missing_(*missing),
        report_(*report) {}

  // Requires: the replicas of one attempt, by position.
  void Judge(const std::vector<Cell>& cells);
  // What it comes to: the verdicts of the rows, the first that went wrong, and what the daemon said
  // and is not here. Requires: nothing more is judged.
  void Finish();
  const std::set<std::size_t>& compared() const { return compared_; }  // numbers of replicas

 private:
  void MarkRows(const Cell& cell, const ReplicaDifference& difference);
  void SetVerdicts();
  void FindFirstBad();
  void AddTold();

  const RanksOptions& options_;
  const AreWithin& are_within_;
  const RankRows& rows_;
  MissingReplicas& missing_;
  RanksReport& report_;
  std::set<std::size_t> compared_;        // replicas
  std::set<std::size_t> differs_, ties_;  // rows
  std::set<std::size_t> unknown_;         // rows that differ by what is not known
  std::set<std::size_t> told_close_;      // rows: what the daemon told is here, and close
};

}  // namespace cgdebug::analysis
