// rank_rows.h: the processes of a report, a row for each, and which of them belong together.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "client/analysis/ranks/ranks.h"
#include "client/analysis/ranks/ranks_state.h"

namespace cgdebug::analysis {

class RankRows {
 public:
  // By rank: rank 3 has several if several processes say that they are it.
  using OfRank = std::map<int, std::vector<std::size_t>>;

  // Makes a row of the report for each process.
  RankRows(const RankState& state, RanksReport* report);

  std::size_t RowOf(std::size_t process) const { return row_of_[process]; }
  // Ascending.
  std::vector<std::size_t> RowsOf(const Bits& processes) const;
  const std::map<Attempt, OfRank>& attempts() const { return attempts_; }
  // Empty if it has no rank.
  const OfRank& Of(const Attempt& attempt) const;
  const std::map<std::string, int>& last_restart() const { return last_restart_; }  // by run

 private:
  std::vector<std::size_t> row_of_;  // of each process
  std::map<Attempt, OfRank> attempts_;
  std::map<std::string, int> last_restart_;
};

// "rank 3", "rank 3 (restart 1)".
std::string RankText(const RankRow& row);

}  // namespace cgdebug::analysis
