// Graphs that were captured with an op log and never replayed.
#include <fmt/format.h>

#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Found FindUnreplayed(const Evidence& evidence) {
  Found answer;
  if (evidence.graphs) return answer;  // FindBadCaptures() knows more
  std::size_t replayed = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    if (log.graph_id == 0 || log.rows.empty()) continue;
    const Result<recording::Account> account = evidence.source->AccountOf(log.rows.front().slot);
    if (!log.runs.empty() || !account.ok() || account->produced > 0) {
      ++replayed;
      continue;
    }
    answer.findings.push_back(
        {.level = Level::kConsistent,
         .kind = "unreplayed",
         .place = PlaceAt(evidence, log_place, 0, SIZE_MAX),
         .sentence = fmt::format("the graph {} was captured and never replayed: what it stands for "
                                 "ran outside of it, or not at all",
                                 log.graph),
         .facts = {{PlaceAt(evidence, log_place, 0, SIZE_MAX),
                    fmt::format("{} rows of its log, and no replay of any", log.rows.size())}},
         .refute = "a replay that is yet to come"});
  }
  if (answer.findings.empty() && replayed > 0) {
    answer.clean = fmt::format("{} graph{} replayed", replayed, replayed == 1 ? " was" : "s were");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
