// missing.h: what is not there, so that it could not be compared.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "client/analysis/ranks/rank_rows.h"
#include "client/analysis/ranks/ranks.h"
#include "client/analysis/ranks/ranks_state.h"

namespace cgdebug::analysis {

// One replica at one position.
struct Cell {
  Position position;
  const ReplicaKey* key;
  const Replica* replica;
  const Vote* vote;
  std::size_t number;  // of the replica
};

// Collects which replicas of a report's rows are not there, and adds sentences about them to it.
// Lifetime: what the constructor takes outlives it.
class MissingReplicas {
 public:
  MissingReplicas(const RankState& state, const RanksOptions& options, const RankRows& rows,
                  RanksReport* report)
      : state_(state), options_(options), rows_(rows), report_(*report) {}

  // Adds a sentence to the report.
  void Miss(std::string sentence);
  // Notes the ranks that lack this replica.
  void Note(const Cell& cell);
  // Adds sentences on what was noted, and on what else is not there. Requires: Note() is not called
  // afterwards.
  void Tell();

 private:
  std::vector<std::size_t> RowsThatShouldHave(const Cell& cell);
  bool HasTwin(std::size_t at, const std::vector<std::size_t>& present) const;
  void TellOfSource();
  void TellAbsentRanks();
  void TellOfRanks();
  static std::vector<std::string> SentencesOf(const RankRow& row);

  const RankState& state_;
  const RanksOptions& options_;
  const RankRows& rows_;
  RanksReport& report_;
  std::map<std::size_t, std::vector<std::size_t>> expected_;  // rows, by replica
};

}  // namespace cgdebug::analysis
