// ranks_report.h: a RanksReport in words and as JSON; the same in the command line and in Python.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/analysis/ranks/ranks.h"

namespace cgdebug::analysis {

// The first bad rank and what it saw first, what is missing, what is odd.
Answer RanksAnswer(const RanksReport& report, const RanksOptions& options);

Json RanksJson(const RanksReport& report, const RanksOptions& options);

// What differs between the ranks of one source, for a command that shows more than that; nothing if
// it has one rank, or no tensor that says that it is the same on several. Fails: as RankFold::Add.
Result<std::optional<RanksReport>> CompareRanks(source::Source& source, const Scope& scope);

// "0..3, 5" of rows of a report.
std::string RanksOfRows(const RanksReport& report, const std::vector<std::size_t>& rows);

}  // namespace cgdebug::analysis
