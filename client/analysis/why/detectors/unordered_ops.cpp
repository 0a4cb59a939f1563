// Ops of a captured graph that touch the same bytes with no path between them.
#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/ops/races.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Found FindUnorderedOps(const Evidence& evidence) {
  Found answer;
  const Races races = FindRaces(*evidence.source);
  for (const GraphOrder& order : races.graphs) {
    for (const std::string& race : order.races) {
      answer.findings.push_back(
          {.kind = "race",
           .place = {.slot = order.slot, .command = "races"},
           .sentence = fmt::format("graph {} has a race: {}", order.graph, race),
           .refute = "nothing: no path of the graph leads from one to the other"});
    }
  }
  if (races.graphs.empty()) {
    const bool has_graph = std::ranges::any_of(
        evidence.logs, [](const Log& log) { return log.graph_id != 0 && !log.rows.empty(); });
    if (has_graph) {
      answer.not_asked = "races between the ops of a graph: cgdebug-cli run --races -- COMMAND";
    }
  }
  SetCleanOrNotLooked(races, "graph has its ops in order", "graphs have their ops in order",
                      "races", &answer);
  return answer;
}

}  // namespace cgdebug::analysis::why
