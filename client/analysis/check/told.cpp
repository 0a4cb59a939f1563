#include "client/analysis/check/told.h"

#include <algorithm>
#include <string>

#include "client/analysis/check/nonfinite.h"

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Snapshot;
using Told = source::Finding;

void Add(FindingKind kind, const Told& told, FindingList* findings) {
  if (Finding* known = findings->Find(told.slot, kind); known != nullptr) {
    if (told.replay < known->first_replay) known->told = told;  // before those that are here
    return;
  }
  findings->Add({.kind = kind,
                 .slot = told.slot,
                 .first_replay = told.replay,
                 .last_replay = told.replay,
                 .count = 1,
                 .told = told});
}

}  // namespace

bool IsHere(source::Source& source, const std::vector<Key>& keys, const Told& told) {
  const auto first = std::ranges::lower_bound(keys, told.replay, {}, &Key::replay);
  const auto last = std::ranges::upper_bound(keys, told.replay, {}, &Key::replay);
  if (first == last || told.serial == 0) return first != last;
  if (!source.slots()[told.slot].in_body) return true;
  return std::any_of(first, last, [&](const Key& key) {
    const Result<Snapshot> snapshot = source.Get(told.slot, key);
    return snapshot.ok() && snapshot->serial == told.serial;
  });
}

std::optional<Told> AddTold(source::Source& source, const Scope& scope, const Scan& scan,
                            const Excuses& excuses, const std::optional<source::Moment>& first_bad,
                            FindingList* findings, Check* check) {
  std::optional<Told> first;
  std::optional<source::Moment> first_moment;
  for (const Told& told : source.Findings()) {
    if (told.kind == layout::FindingKind::kReplica) continue;  // of `ranks`
    const Scanned* const scanned = scan.Find(told.slot);
    if (scanned == nullptr || !scope.Wants(told.replay)) continue;
    const bool is_mismatch = told.kind == layout::FindingKind::kMismatch;
    if (!is_mismatch && IsHere(source, scanned->keys, told)) continue;
    // How many -Inf a mask has may change. What made it another way is in a row before it.
    const bool is_mask = scanned->has_mask && told.kind == layout::FindingKind::kInf;
    const auto excuse = excuses.find({told.slot, {told.replay, 0}});
    const FindingKind kind = is_mismatch               ? FindingKind::kMismatch
                             : is_mask                 ? FindingKind::kMask
                             : excuse == excuses.end() ? FindingKind::kNonfinite
                                                       : KindOf(excuse->second);
    Add(kind, told, findings);
    if (kind != FindingKind::kNonfinite) continue;
    const Slot& slot = source.slots()[told.slot];
    const source::Moment moment = scan.MomentAt(slot, told.serial, {.replay = told.replay});
    TakeIfFirst(slot, {told.slot, told.replay, moment, told.serial, told.step, told.count},
                told.kind == layout::FindingKind::kNan ? &check->first_nan : &check->first_inf);
    if (first_bad && *first_bad < moment) continue;
    if (first_moment && *first_moment <= moment) continue;
    first_moment = moment;
    first = told;
  }
  return first;
}

std::uint64_t SeenFinite(source::Source& source, const Scope& scope, const Scan& scan,
                         const Check& check) {
  if (source.Describe().kind != "live" || !scope.has_all_replays() || check.in_part > 0) return 0;
  for (const Told& told : source.Findings()) {
    if (told.kind != layout::FindingKind::kMismatch && scan.Find(told.slot) != nullptr) return 0;
  }
  const auto let_go = check.account.lost.find(std::string(ToText(layout::LossCause::kNotKept)));
  return let_go == check.account.lost.end() ? 0 : let_go->second;
}

}  // namespace cgdebug::analysis
