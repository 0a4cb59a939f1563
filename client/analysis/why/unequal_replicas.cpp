// Replicas that the daemon saw differ between ranks.
#include <fmt/format.h>

#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Found FindUnequalReplicas(const Evidence& evidence) {
  Found answer;
  for (const source::Finding& told : evidence.source->Findings()) {
    if (told.kind != source::Finding::Kind::kReplica) continue;
    const source::Slot& slot = evidence.source->slots()[told.slot];
    Finding finding{.kind = "replica",
                    .place = {told.slot, told.replay},
                    .sentence = fmt::format("{} of rank {} is not that of the other ranks, from "
                                            "replay {} on",
                                            SlotText(slot), slot.rank, told.replay),
                    .refute = "nothing: the ranks had other bits. Type: cgdebug-cli ranks"};
    if (!told.text.empty()) finding.facts.push_back({finding.place, told.text});
    answer.findings.push_back(std::move(finding));
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
