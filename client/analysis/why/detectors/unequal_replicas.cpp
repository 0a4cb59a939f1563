// Replicas that the daemon saw differ between ranks.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Found FindUnequalReplicas(const Evidence& evidence) {
  Found answer;
  std::map<std::pair<std::string, std::string>, std::size_t> known;  // by run and name
  for (const source::Finding& told : evidence.source->Findings()) {
    if (told.kind != layout::FindingKind::kReplica) continue;
    const source::Slot& slot = evidence.source->slots()[told.slot];
    const std::string from = fmt::format("from {} {} on", ReplayWord(slot), told.replay);
    // Where no majority says which rank is right, each of them is told of.
    const auto [place, is_new] =
        known.try_emplace({slot.run, SlotText(slot)}, answer.findings.size());
    if (!is_new) {
      answer.findings[place->second].facts.push_back(
          {{told.slot, told.replay}, fmt::format("so is that of rank {}, {}", slot.rank, from)});
      continue;
    }
    Finding finding{.kind = "replica",
                    .place = {.slot = told.slot, .replay = told.replay, .command = "ranks"},
                    .sentence = fmt::format("{} of rank {} is not that of the other ranks, {}",
                                            SlotText(slot), slot.rank, from),
                    .refute = "nothing: the ranks had other bits"};
    if (!told.text.empty()) finding.facts.push_back({finding.place, told.text});
    answer.findings.push_back(std::move(finding));
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
