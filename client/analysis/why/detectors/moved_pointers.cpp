// Memory that a captured graph reads and that the model has left, as the job found.
#include <fmt/format.h>

#include "client/analysis/ops/audit.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Found FindMovedPointers(const Evidence& evidence) {
  Found answer;
  const Audit audit = ReadAudit(*evidence.source);
  const auto add = [&](const GraphAudit& one, Level level, const std::vector<std::string>& texts) {
    if (texts.empty()) return;
    Finding finding{.level = level,
                    .kind = "moved_pointer",
                    .place = {.slot = one.slot, .command = "audit"},
                    .sentence = fmt::format("graph {}: {}", one.graph, texts.front()),
                    .refute = level == Level::kShown ? "nothing: the addresses are those of the job"
                                                     : "a graph that is not replayed again"};
    if (texts.size() > 1) finding.sentence += fmt::format("; and {} more", texts.size() - 1);
    for (std::size_t i = 1; i < texts.size(); ++i) {
      finding.facts.push_back({{.slot = one.slot}, texts[i]});
    }
    answer.findings.push_back(std::move(finding));
  };
  for (const GraphAudit& one : audit.graphs) {
    add(one, Level::kShown, one.wrong);
    add(one, Level::kConsistent, one.latent);
  }
  SetCleanOrNotLooked(audit, "graph reads the memory that the model has",
                      "graphs read the memory that the model has", "memory of graphs", &answer);
  return answer;
}

}  // namespace cgdebug::analysis::why
