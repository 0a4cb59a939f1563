#include "client/analysis/check/staleness.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "client/analysis/check/finding_list.h"
#include "client/analysis/check/scan.h"
#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::analysis {
namespace {

using source::Slot;
using source::Snapshot;

// Requires: a came before b.
std::optional<bool> IsSame(source::Source& source, const Snapshot& a, const Snapshot& b) {
  if (a.hash && b.hash) return *a.hash == *b.hash;
  if (!a.has_values || !b.has_values) return std::nullopt;
  if (b.same_as == a.key.id) return true;
  // Equal values have equal statistics. The reverse is not certain.
  if (a.stats && b.stats && !numerics::DifferencesOf(*a.stats, *b.stats).empty()) return false;
  const Result<source::Values> x = source.Load(a), y = source.Load(b);
  if (!x.ok() || !y.ok() || x->bytes.size() != y->bytes.size()) return std::nullopt;
  return x->bytes.empty() || std::memcmp(x->bytes.data(), y->bytes.data(), x->bytes.size()) == 0;
}

// A file of tensors has no serials: its replays are the steps of all slots.
bool IsOrderedBySerial(const Slot& slot, const Snapshot& snapshot) {
  return slot.graph_id == 0 && snapshot.serial != 0;
}

}  // namespace

void Staleness::Note(const Snapshot& before, const Snapshot& now, Scanned* scanned) {
  const std::optional<bool> same = IsSame(source_, before, now);
  if (!same) return;
  if (*same) {
    // NaN stays NaN: another finding says that already.
    const bool is_finite = !now.stats || now.stats->nonfinite() == 0;
    if (is_finite) scanned->unchanged.push_back({now.key.replay, now.serial, before.serial});
    return;
  }
  scanned->ever_changed = true;
  const Slot& slot = source_.slots()[now.slot];
  if (IsOrderedBySerial(slot, now)) {
    eager_changes_[GraphOf(slot)].push_back({now.serial, now.slot});
    return;
  }
  const auto [found, is_new] =
      first_changed_.try_emplace({GraphOf(slot), now.key.replay}, slot.order);
  if (!is_new) found->second = std::min(found->second, slot.order);
}

void Staleness::Finish() {
  for (auto& [graph, changes] : eager_changes_) {
    std::ranges::sort(changes, {}, &EagerChange::serial);
  }
}

void Staleness::Find(const std::vector<Scanned>& probes, FindingList* findings) const {
  for (const Scanned& scanned : probes) {
    const Slot& slot = source_.slots()[scanned.slot];
    FindingRun run;
    for (const Unchanged& one : scanned.unchanged) {
      if (!ChangedBefore(slot, one)) continue;
      run.Add(scanned.ever_changed ? FindingKind::kStale : FindingKind::kConstant, scanned.slot,
              one.replay);
    }
    // Zeros that stay zeros are reported once.
    if (findings->Find(scanned.slot, FindingKind::kZero) == nullptr) findings->Add(run);
  }
}

// Whether a probe before `slot` changed in the same replay or, for eager calls, since the
// snapshot before. Another shape of the same probe does not count.
bool Staleness::ChangedBefore(const Slot& slot, const Unchanged& one) const {
  if (slot.graph_id != 0 || one.serial == 0) {
    const auto changed = first_changed_.find({GraphOf(slot), one.replay});
    return changed != first_changed_.end() && changed->second < slot.order;
  }
  const auto of_graph = eager_changes_.find(GraphOf(slot));
  if (of_graph == eager_changes_.end()) return false;
  const std::vector<EagerChange>& changes = of_graph->second;
  auto change = std::ranges::upper_bound(changes, one.serial_before, {}, &EagerChange::serial);
  for (; change != changes.end() && change->serial <= one.serial; ++change) {
    const Slot& other = source_.slots()[change->slot];
    if (other.order < slot.order && SlotName(other) != SlotName(slot)) return true;
  }
  return false;
}

}  // namespace cgdebug::analysis
