#include "client/analysis/check/nonfinite.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/analysis/ops/masks.h"

namespace cgdebug::analysis {

using source::Slot;

Result<std::optional<EarliestBad>> SortOutNonfinite(source::Source& source, Scan* scan,
                                                    FindingList* findings) {
  std::vector<SeenSlot> seen;
  for (Scanned& scanned : scan->probes()) seen.push_back(std::move(scanned.seen));
  const Excuses excuses = FindExcuses(source, seen);
  const std::map<std::size_t, std::size_t> rows_of_values = RowsOfValues(source);
  const auto excused_as = [&](std::size_t slot) {
    const auto row = rows_of_values.find(slot);
    return row == rows_of_values.end() ? slot : row->second;
  };
  const Scanned* of_first = nullptr;
  const Scanned::Nonfinite* first = nullptr;
  for (Scanned& scanned : scan->probes()) {
    FindingRun runs[6];
    for (const Scanned::Nonfinite& one : scanned.nonfinite) {
      const auto found =
          excuses.find({excused_as(scanned.slot), {one.key.replay, one.key.iteration}});
      const Excuse excuse = found == excuses.end() ? Excuse::kNone : found->second;
      constexpr FindingKind kKinds[] = {FindingKind::kNonfinite, FindingKind::kMask,
                                        FindingKind::kAbsorbed,  FindingKind::kPadding,
                                        FindingKind::kSkipped,   FindingKind::kRowsNotKnown};
      const auto kind = static_cast<std::size_t>(excuse);
      runs[kind].Add(kKinds[kind], scanned.slot, one.key.replay);
      if (excuse != Excuse::kNone || (first != nullptr && first->moment <= one.moment)) continue;
      of_first = &scanned;
      first = &one;
    }
    scanned.has_mask = runs[static_cast<std::size_t>(Excuse::kMask)].finding.has_value();
    for (const FindingRun& run : runs) findings->Add(run);
  }
  if (first == nullptr) return std::optional<EarliestBad>();
  const Result<source::Snapshot> snapshot = source.Get(of_first->slot, first->key);
  if (!snapshot.ok()) return snapshot.error();
  const Result<numerics::Stats> stats = source::StatsOf(source, *snapshot);
  if (!stats.ok()) return stats.error();
  return std::optional(
      EarliestBad{.bad = {.slot = of_first->slot, .snapshot = *snapshot, .stats = *stats},
                  .moment = first->moment});
}

void SortOutNearOverflow(const source::Source& source, const Scan& scan, FindingList* findings) {
  std::set<std::pair<std::string, int>> scaling;  // by session and rank
  for (const Scanned& scanned : scan.probes()) {
    const Slot& slot = source.slots()[scanned.slot];
    if (IsOfGradScaler(slot)) scaling.emplace(slot.session, slot.rank);
  }
  for (const Scanned& scanned : scan.probes()) {
    std::optional<Finding> finding = scanned.near_overflow.finding;
    if (!finding) continue;
    const Slot& slot = source.slots()[scanned.slot];
    const bool is_scaled = scaling.contains({slot.session, slot.rank}) && IsGradient(slot);
    if (is_scaled) finding->kind = FindingKind::kScaled;
    findings->Add(*std::move(finding));
  }
}

}  // namespace cgdebug::analysis
