#include "client/analysis/check/nonfinite.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/analysis/check/told.h"
#include "client/analysis/ops/between_calls.h"
#include "client/analysis/ops/masks.h"

namespace cgdebug::analysis {

using source::Slot;

FindingKind KindOf(Excuse excuse) {
  constexpr FindingKind kKinds[] = {FindingKind::kNonfinite, FindingKind::kMask,
                                    FindingKind::kAbsorbed,  FindingKind::kPadding,
                                    FindingKind::kSkipped,   FindingKind::kRowsNotKnown,
                                    FindingKind::kMayHaveOne};
  return kKinds[static_cast<std::size_t>(excuse)];
}

namespace {

constexpr std::size_t kExcuses = static_cast<std::size_t>(Excuse::kMayHaveOne) + 1;

// Adds to `seen` what the daemon has told of rows of op logs whose snapshots the source does not
// have, as if it had them.
void AddTold(source::Source& source, const Scan& scan, std::vector<SeenSlot>* seen) {
  for (const source::Finding& told : source.Findings()) {
    const bool is_nan = told.kind == layout::FindingKind::kNan;
    if (!is_nan && told.kind != layout::FindingKind::kInf) continue;
    const Scanned* const scanned = scan.Find(told.slot);
    if (scanned == nullptr || source.slots()[told.slot].op.empty()) continue;
    if (IsHere(source, scanned->keys, told)) continue;
    SeenSlot& row = (*seen)[static_cast<std::size_t>(scanned - scan.probes().data())];
    const SeenSlot::Time time{told.replay, 0};
    const auto later = std::ranges::lower_bound(row.bad, time, {}, &SeenSlot::Bad::time);
    if (later != row.bad.end() && later->time == time) {
      later->has_nan = later->has_nan || is_nan;
      continue;
    }
    row.bad.insert(later, {.time = time, .count = told.count, .has_nan = is_nan});
    row.times.insert(std::ranges::lower_bound(row.times, time), time);
  }
}

}  // namespace

Result<std::optional<EarliestBad>> SortOutNonfinite(source::Source& source, Scan* scan,
                                                    FindingList* findings, Excuses* all_excuses,
                                                    Check* check) {
  std::vector<SeenSlot> seen;
  for (Scanned& scanned : scan->probes()) seen.push_back(std::move(scanned.seen));
  AddTold(source, *scan, &seen);
  *all_excuses = FindExcuses(source, seen);
  const Excuses& excuses = *all_excuses;
  const Scanned* of_first = nullptr;
  const Scanned::Nonfinite* first = nullptr;
  for (Scanned& scanned : scan->probes()) {
    FindingRun runs[kExcuses];
    for (const Scanned::Nonfinite& one : scanned.nonfinite) {
      const auto found = excuses.find({scanned.slot, {one.key.replay, one.key.iteration}});
      const Excuse excuse = found == excuses.end() ? Excuse::kNone : found->second;
      const auto kind = static_cast<std::size_t>(excuse);
      runs[kind].Add(KindOf(excuse), scanned.slot, one.key.replay);
      if (excuse != Excuse::kNone) continue;
      const Slot& slot = source.slots()[scanned.slot];
      for (const auto& [count, firsts] :
           {std::pair(one.nan, &check->first_nan), std::pair(one.inf, &check->first_inf)}) {
        if (count == 0) continue;
        TakeIfFirst(slot, {scanned.slot, one.key.replay, one.moment, one.serial, one.step, count},
                    firsts);
      }
      if (first != nullptr && first->moment <= one.moment) continue;
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

namespace {

bool IsClamp(std::string_view op) {
  constexpr std::array kClamps = {std::string_view("clamp"), std::string_view("clamp_max"),
                                  std::string_view("clamp_min"), std::string_view("hardtanh")};
  return std::ranges::find(kClamps, StemOf(op)) != kClamps.end();
}

// Rows of op logs that are near overflow and are meant to be: a clamp wrote them, or in each replay
// only clamps read them.
class ClampedRows {
 public:
  ClampedRows(const source::Source& source, const Scan& scan) : source_(source) {
    std::set<Row> wanted;
    for (const Scanned& scanned : scan.probes()) {
      const OpText* const text = source.slots()[scanned.slot].op.row();
      if (text && scanned.near_overflow.finding) wanted.insert(RowOf(scanned.slot, text->number));
    }
    for (const Scanned& scanned : scan.probes()) {
      const OpText* const text = source.slots()[scanned.slot].op.row();
      if (!text || layout::IsPaddingOp(text->op)) continue;
      for (const std::uint32_t number : text->inputs) {
        const Row row = RowOf(scanned.slot, number);
        if (!wanted.contains(row)) continue;
        for (const source::Key& key : scanned.keys) {
          bool& is_clamped = readers_.try_emplace({row, key.replay}, true).first->second;
          is_clamped = is_clamped && IsClamp(text->op);
        }
      }
    }
  }

  bool Contains(const Scanned& scanned) const {
    const OpText* const text = source_.slots()[scanned.slot].op.row();
    if (!text) return false;
    const Row row = RowOf(scanned.slot, text->number);
    return IsClamp(text->op) || std::ranges::all_of(scanned.keys, [&](const source::Key& key) {
             const auto readers = readers_.find({row, key.replay});
             return readers != readers_.end() && readers->second;
           });
  }

 private:
  using Row = std::tuple<std::string, int, std::uint64_t, std::uint32_t>;
  Row RowOf(std::size_t slot, std::uint32_t number) const {
    const Slot& of = source_.slots()[slot];
    return {of.session, of.rank, of.graph_id, number};
  }

  const source::Source& source_;
  std::map<std::pair<Row, std::uint64_t>, bool> readers_;  // of a replay: whether all are clamps
};

}  // namespace

void SortOutNearOverflow(const source::Source& source, const Scan& scan, FindingList* findings) {
  std::set<std::pair<std::string, int>> scaling;  // by session and rank
  for (const Scanned& scanned : scan.probes()) {
    const Slot& slot = source.slots()[scanned.slot];
    if (IsOfGradScaler(slot)) scaling.emplace(slot.session, slot.rank);
  }
  std::optional<ClampedRows> clamped;
  for (const Scanned& scanned : scan.probes()) {
    std::optional<Finding> finding = scanned.near_overflow.finding;
    if (!finding) continue;
    if (!clamped) clamped.emplace(source, scan);
    if (clamped->Contains(scanned)) continue;
    const Slot& slot = source.slots()[scanned.slot];
    const bool is_scaled = scaling.contains({slot.session, slot.rank}) && IsGradient(slot);
    if (is_scaled) finding->kind = FindingKind::kScaled;
    findings->Add(*std::move(finding));
  }
}

namespace {

bool IsOfLog(const source::Slot& slot, const OpLog& log) {
  const bool is_of_job = log.uuid.empty() ? slot.session == log.session : slot.uuid == log.uuid;
  return is_of_job && slot.rank == log.rank && slot.graph_id == log.graph_id;
}

}  // namespace

Result<LogExcuses> ExcusesOfLog(source::Source& source, const OpLog& log) {
  const CheckOptions options{.trusts_hashes = true};
  Scan scan(source, options);
  if (const Result<void> done = scan.Run(); !done.ok()) return done.error();
  Check check;
  FindingList findings;
  Excuses excuses;
  const Result<std::optional<EarliestBad>> first =
      SortOutNonfinite(source, &scan, &findings, &excuses, &check);
  if (!first.ok()) return first.error();
  LogExcuses found;
  std::size_t slot_of_nan = 0;
  const auto note_nan = [&](std::size_t slot, std::uint64_t replay, bool is_kept) {
    if (found.nan_since != 0 && found.nan_since <= replay) return;
    found.nan_since = replay;
    found.is_nan_kept = is_kept;
    slot_of_nan = slot;
  };
  for (const Scanned& scanned : scan.probes()) {
    const source::Slot& slot = source.slots()[scanned.slot];
    const OpText* const text = slot.op.row();
    if (!text || !IsOfLog(slot, log)) continue;
    const OpRow* const row = log.Find(text->number);
    for (const Scanned::Nonfinite& one : scanned.nonfinite) {
      const auto excuse = excuses.find({scanned.slot, {one.key.replay, one.key.iteration}});
      if (excuse == excuses.end()) {
        if (one.nan > 0) note_nan(scanned.slot, one.key.replay, true);
      } else if (one.key.replay == log.replay && row != nullptr && row->name == slot.probe) {
        const FindingKind kind = KindOf(excuse->second);
        (IsOpen(kind) ? found.open : found.excused).insert(text->number);
        if (kind == FindingKind::kMayHaveOne) found.awaiting.insert(text->number);
      }
    }
  }
  for (const source::Finding& told : source.Findings()) {
    const source::Slot& slot = source.slots()[told.slot];
    if (told.kind != layout::FindingKind::kNan || !IsOfLog(slot, log)) continue;
    const Scanned* const scanned = scan.Find(told.slot);
    if (scanned == nullptr || slot.op.empty() || IsHere(source, scanned->keys, told)) continue;
    if (!excuses.contains({told.slot, {told.replay, 0}})) note_nan(told.slot, told.replay, false);
  }
  if (found.is_nan_kept) found.nan_next_call = NextCallOf(source, slot_of_nan, found.nan_since);
  return found;
}

}  // namespace cgdebug::analysis
