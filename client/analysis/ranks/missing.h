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

// Notes what is missing in the rows of a report, and says it. Lifetime: all outlive it.
class MissingReplicas {
 public:
  MissingReplicas(const RankState& state, const RanksOptions& options, const RankRows& rows,
                  RanksReport* report)
      : state_(state), options_(options), rows_(rows), report_(*report) {}

  // Adds a sentence.
  void Miss(std::string sentence);
  // Notes the ranks that lack it.
  void Note(const Cell& cell);
  // Says what was noted, and what else is not there. Requires: nothing more is noted.
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
