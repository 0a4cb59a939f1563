#include "client/source/copy_plan.h"

#include <algorithm>

#include "proto/layout/ring_layout.h"

namespace cgdebug::source {
namespace {

using layout::LossCause;
using recording::Loss;
using recording::RecordingReader;
using recording::SnapshotRef;

// A snapshot that several recordings lost counts as one loss. `losses`: by ordinal.
std::vector<Loss> EachOnce(const std::vector<Loss>& losses) {
  std::vector<Loss> once;
  std::uint64_t told = 0;
  for (Loss loss : losses) {
    if (loss.first_ordinal != 0 && loss.first_ordinal <= loss.last_ordinal) {
      if (loss.last_ordinal <= told) continue;
      if (loss.first_ordinal <= told) {
        loss.first_ordinal = told + 1;
        loss.count = std::min(loss.count, loss.last_ordinal - told);
      }
      told = loss.last_ordinal;
    }
    once.push_back(loss);
  }
  return once;
}

// How far beside a snapshot's replay the limit of a loss before or after it lies:
// Loss::after_replay.
std::uint64_t OutOf(const recording::Slot& slot) { return slot.in_body ? 1 : 0; }

// The parts of `loss` that none of `items` fills and that hold something that was wanted.
void AppendMissing(const recording::Slot& slot, const Loss& loss,
                   const std::vector<CopiedItem>& items, std::vector<Loss>* losses) {
  const std::uint32_t every = slot.every;
  const std::uint64_t out = OutOf(slot);
  if (loss.first_ordinal == 0 || loss.last_ordinal < loss.first_ordinal) {
    losses->push_back(loss);
    return;
  }
  auto item = std::lower_bound(
      items.begin(), items.end(), loss.first_ordinal,
      [](const CopiedItem& one, std::uint64_t ordinal) { return one.ordinal < ordinal; });
  if (item == items.end() || item->ordinal > loss.last_ordinal) {
    losses->push_back(loss);
    return;
  }
  Loss part = loss;
  std::uint64_t left = loss.count;
  const auto add = [&](std::uint64_t end, std::uint64_t before_replay) {
    part.last_ordinal = end - 1;
    part.before_replay = before_replay;
    part.count = std::min(left, end - part.first_ordinal);
    if (every > 1 && before_replay != 0) {
      part.count = std::min(part.count, layout::WantedUpTo(every, before_replay - 1) -
                                            layout::WantedUpTo(every, part.after_replay));
    }
    left -= part.count;
    if (part.count != 0) losses->push_back(part);
  };
  for (; item != items.end() && item->ordinal <= loss.last_ordinal; ++item) {
    add(item->ordinal, item->ref.replay + out);
    left -= std::min<std::uint64_t>(left, 1);
    part.first_ordinal = item->ordinal + 1;
    part.after_replay = item->ref.replay - out;
  }
  add(loss.last_ordinal + 1, loss.before_replay);
}

}  // namespace

CopyPlan::CopyPlan(const std::vector<const RecordingReader*>& from, const CopyOptions& options)
    : options_(options) {
  for (std::uint32_t number = 0; number < from.size(); ++number) Collect(number, *from[number]);
  for (CopiedSlot& slot : slots_) Settle(&slot);
}

CopiedSlot* CopyPlan::Find(const std::string& uuid, const recording::Slot& slot) {
  const auto found = slot_of_.find({uuid, slot.index, slot.generation});
  return found == slot_of_.end() ? nullptr : &slots_[found->second];
}

std::uint64_t CopyPlan::snapshots() const {
  std::uint64_t count = 0;
  for (const CopiedSlot& slot : slots_) count += slot.items.size();
  return count;
}

std::uint64_t CopyPlan::lost() const {
  std::uint64_t count = 0;
  for (const CopiedSlot& slot : slots_)
    for (const Loss& loss : slot.losses) count += loss.count;
  return count;
}

bool CopyPlan::FitToRange(const CopiedSlot& target, recording::Mark* mark) const {
  if (recording::IsFinding(mark->kind)) {
    return mark->replay >= options_.first_replay && mark->replay <= options_.last_replay;
  }
  if (mark->kind != recording::MarkKind::kSlotClosed) return true;
  mark->ordinal = target.slot.from_ordinal;
  mark->skipped = 0;
  if (!target.items.empty()) mark->ordinal = target.items.back().ordinal;
  for (const Loss& loss : target.losses) mark->ordinal = std::max(mark->ordinal, loss.last_ordinal);
  return true;
}

bool CopyPlan::Wants(const recording::Slot& slot, const RecordingReader& reader) const {
  if (slot.probe.empty() || slot.session >= reader.sessions().size()) return false;
  return !options_.wants || options_.wants(slot, reader.sessions()[slot.session]);
}

bool CopyPlan::IsWanted(const Loss& loss) const {
  const bool is_before = loss.before_replay > 0 && loss.before_replay <= options_.first_replay;
  return !is_before && loss.after_replay < options_.last_replay;
}

void CopyPlan::Collect(std::uint32_t number, const RecordingReader& reader) {
  std::map<std::uint32_t, std::size_t> targets;  // by slot of the reader
  for (const recording::Slot& slot : reader.slots()) {
    if (!Wants(slot, reader)) continue;
    const std::string& uuid = reader.sessions()[slot.session].uuid;
    const auto [found, is_new] =
        slot_of_.try_emplace({uuid, slot.index, slot.generation}, slots_.size());
    if (is_new) slots_.push_back({.slot = slot, .session_uuid = uuid});
    CopiedSlot& target = slots_[found->second];
    target.slot.from_ordinal = std::min(target.slot.from_ordinal, slot.from_ordinal);
    target.slot.from_replay = std::min(target.slot.from_replay, slot.from_replay);
    target.stretches.emplace_back(slot.from_ordinal,
                                  slot.from_ordinal + reader.AccountOf(slot.id).produced);
    targets[slot.id] = found->second;
    for (const SnapshotRef& ref :
         reader.Snapshots(slot.id, options_.first_replay, options_.last_replay)) {
      target.items.push_back({ref.ordinal, static_cast<std::uint32_t>(found->second), number, ref});
    }
  }
  for (const Loss& loss : reader.losses()) {
    const auto target = targets.find(loss.slot);
    if (target == targets.end() || !IsWanted(loss)) continue;
    slots_[target->second].losses.push_back(loss);
  }
}

void CopyPlan::Settle(CopiedSlot* target) const {
  std::vector<CopiedItem>& items = target->items;
  std::stable_sort(items.begin(), items.end(),
                   [](const CopiedItem& a, const CopiedItem& b) { return a.ordinal < b.ordinal; });
  std::vector<CopiedItem> first_of_each;
  for (const CopiedItem& item : items) {
    const bool is_first = first_of_each.empty() || first_of_each.back().ordinal != item.ordinal;
    (is_first ? first_of_each : target->others).push_back(item);
  }
  items = std::move(first_of_each);
  AddHoles(target);
  std::vector<Loss> losses;
  for (const Loss& loss : target->losses) AppendMissing(target->slot, loss, items, &losses);
  std::ranges::stable_sort(losses, {}, &Loss::first_ordinal);
  target->losses = EachOnce(losses);
  std::uint64_t first = items.empty() ? 0 : items.front().ordinal;
  for (const Loss& loss : target->losses) {
    if (loss.first_ordinal > 0 && (first == 0 || loss.first_ordinal < first)) {
      first = loss.first_ordinal;
    }
  }
  if (options_.first_replay > 1 && first > 0) target->slot.from_ordinal = first - 1;
}

void CopyPlan::AddHoles(CopiedSlot* target) const {
  std::ranges::sort(target->stretches);
  std::uint64_t told = target->stretches.front().first;
  for (const auto& [from, to] : target->stretches) {
    if (from > told) {
      const auto after = std::ranges::upper_bound(target->items, from, {}, &CopiedItem::ordinal);
      Loss hole{.cause = LossCause::kDaemonGone,
                .count = from - told,
                .first_ordinal = told + 1,
                .last_ordinal = from};
      const std::uint64_t out = OutOf(target->slot);
      if (after != target->items.end()) hole.before_replay = after->ref.replay + out;
      if (after != target->items.begin()) hole.after_replay = (after - 1)->ref.replay - out;
      if (IsWanted(hole)) target->losses.push_back(hole);
    }
    told = std::max(told, to);
  }
}

}  // namespace cgdebug::source
