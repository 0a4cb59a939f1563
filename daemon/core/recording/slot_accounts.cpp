#include "daemon/core/recording/slot_accounts.h"

#include <algorithm>
#include <limits>
#include <string>

#include "proto/layout/ring_layout.h"

namespace cgdebug::recording {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// How many of `missing` ordinals, from replays after `after` and up to `last`, the slot's period
// can have wanted. At least one, because there is a gap. If the live control asked for the snapshot
// before them, it may have asked for all of them.
std::uint64_t WantedOf(const Slot& slot, std::uint64_t missing, std::uint64_t after,
                       std::uint64_t last) {
  const bool forced = after != 0 && !layout::Wants(slot.every, after);
  after = std::max(after, slot.from_replay);
  if (slot.every <= 1 || missing == 0 || forced || last < after) return missing;
  const std::uint64_t wanted =
      layout::WantedUpTo(slot.every, last) - layout::WantedUpTo(slot.every, after);
  return std::clamp<std::uint64_t>(wanted, 1, missing);
}

}  // namespace

void SlotAccounts::Refresh() {
  losses_ = contents_.tables().losses;
  FindMissingEnds();
  FindMissing();
  SortEnds();
}

// Finds snapshots that were lost with damaged records: gaps in a slot's ordinals that no loss
// explains.
void SlotAccounts::FindMissing() {
  const std::vector<Slot>& slots = contents_.tables().slots;
  const bool any = std::ranges::any_of(
      contents_.damage(), [](const Damage& damage) { return damage.missing_records != 0; });
  if (!any) return;
  std::vector<Loss> found;
  for (const Slot& slot : slots) {
    std::uint64_t ordinal = slot.from_ordinal;
    std::uint64_t replay = 0;
    for (const SnapshotRef& ref : SnapshotRange{&contents_.index(), slot.id, 0, kNoLimit}) {
      std::uint64_t missing = ref.ordinal - std::min(ref.ordinal, ordinal + 1);
      for (const Loss& loss : losses_) {
        if (missing == 0) break;
        if (loss.slot != slot.id || loss.first_ordinal <= ordinal) continue;
        if (loss.last_ordinal >= ref.ordinal) continue;
        missing -= std::min(missing, loss.last_ordinal - loss.first_ordinal + 1);
      }
      const auto snapshot =
          missing == 0 ? Snapshot() : ReadSnapshot(contents_, ref).value_or(Snapshot());
      missing -= std::min(missing, snapshot.skipped);
      const bool forced = slot.every > 1 && !layout::Wants(slot.every, ref.replay);
      if (!forced) missing = WantedOf(slot, missing, replay, ref.replay - 1);
      if (missing != 0) {
        const std::uint64_t out = slot.in_body ? 1 : 0;  // see Loss::after_replay
        found.push_back({slot.id, LossCause::kDamaged, missing, ordinal + 1, ref.ordinal - 1,
                         replay - std::min(replay, out), ref.replay + out, snapshot.timestamp_ns});
      }
      ordinal = ref.ordinal;
      replay = ref.replay;
    }
  }
  losses_.insert(losses_.end(), found.begin(), found.end());
}

// Finds what is missing between the last snapshot of a slot and the mark that closed it.
void SlotAccounts::FindMissingEnds() {
  const std::vector<Slot>& slots = contents_.tables().slots;
  std::vector<Loss> found;
  for (const Mark& mark : contents_.tables().marks) {
    const bool is_slot = mark.slot >= 0 && static_cast<std::size_t>(mark.slot) < slots.size();
    if (mark.kind != MarkKind::kSlotClosed || !is_slot) continue;
    const Slot& slot = slots[static_cast<std::size_t>(mark.slot)];
    std::uint64_t ordinal = slot.from_ordinal;
    std::uint64_t replay = 0;
    if (const auto last = contents_.index().Last(slot.id); last && last->ordinal > ordinal) {
      ordinal = last->ordinal;
      replay = last->replay;
    }
    if (mark.ordinal <= ordinal) continue;
    std::uint64_t missing = mark.ordinal - ordinal;
    missing -= std::min(missing, mark.skipped);
    missing = WantedOf(slot, missing, replay, mark.replay);
    for (const Loss& loss : losses_) {
      if (loss.slot != slot.id || loss.first_ordinal <= ordinal) continue;
      missing -= std::min(missing, loss.last_ordinal - loss.first_ordinal + 1);
    }
    if (missing == 0) continue;
    const std::uint64_t out = slot.in_body ? 1 : 0;
    found.push_back({slot.id, LossCause::kDamaged, missing, ordinal + 1, mark.ordinal,
                     replay - std::min(replay, out), 0, mark.timestamp_ns});
  }
  losses_.insert(losses_.end(), found.begin(), found.end());
}

void SlotAccounts::SortEnds() {
  const std::vector<Slot>& slots = contents_.tables().slots;
  has_ends_ = false;
  losses_of_.clear();
  closed_at_.clear();
  for (std::size_t i = 0; i < losses_.size(); ++i) losses_of_[losses_[i].slot].push_back(i);
  for (const Mark& mark : contents_.tables().marks) {
    has_ends_ = has_ends_ || mark.kind == MarkKind::kSessionDied;
    if (mark.kind != MarkKind::kSlotClosed) continue;
    has_ends_ = true;
    if (mark.slot < 0 || static_cast<std::size_t>(mark.slot) >= slots.size()) continue;
    std::uint64_t& ordinal = closed_at_[static_cast<std::uint32_t>(mark.slot)];
    ordinal = std::max(ordinal, mark.ordinal);
  }
}

Account SlotAccounts::Of(std::uint32_t slot) const {
  Account account;
  account.before = contents_.tables().slots[slot].from_ordinal;
  account.kept = contents_.index().count(slot);
  std::uint64_t last = account.before;
  if (const auto newest = contents_.index().Last(slot)) last = std::max(last, newest->ordinal);
  if (const auto found = losses_of_.find(slot); found != losses_of_.end()) {
    for (const std::size_t place : found->second) {
      const Loss& loss = losses_[place];
      last = std::max(last, loss.last_ordinal);
      (loss.cause == LossCause::kValuesGone ? account.without_values
                                            : account.lost[std::string(ToText(loss.cause))]) +=
          loss.count;
    }
  }
  const auto closed = closed_at_.find(slot);
  if (closed != closed_at_.end()) last = std::max(last, closed->second);
  // A recording without any such mark was not written by a daemon. The slots of a job whose memory
  // was cut off have none.
  account.is_end_known = closed != closed_at_.end() || (!has_ends_ && had_all());
  const std::uint64_t known = account.kept + account.lost_count();
  account.produced = std::max(last - account.before, known);
  account.not_wanted = account.produced - known;
  return account;
}

}  // namespace cgdebug::recording
