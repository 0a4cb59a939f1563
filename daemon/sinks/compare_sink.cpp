#include "daemon/sinks/compare_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/model/text.h"

namespace cgdebug::sinks {
namespace {

using layout::VerdictState;

void SetError(layout::Verdict* verdict, std::string text) {
  if (verdict->state == VerdictState::kFail) return;
  verdict->state = VerdictState::kError;
  verdict->text = std::move(text);
}

// Whether each entry counts once, and not each replay.
bool CountsEntries(const pipeline::SlotPtr& slot) {
  return slot->IsInBody() || (slot->registration.flags & layout::kSlotComparesOnDevice) != 0;
}

std::string MissedText(const layout::Verdict& verdict) {
  return fmt::format(
      "{} snapshot{} could not be compared: overwritten or half written before the daemon could "
      "read {}, or turned off or down to statistics (cgdebug-cli set); the {} that the daemon "
      "compared matched. Give the probe more room with TensorRecord(capacity=...)",
      verdict.lost, verdict.lost == 1 ? "" : "s", verdict.lost == 1 ? "it" : "them",
      verdict.compared);
}

}  // namespace

void CompareSink::OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback& feedback) {
  if (!slot->Has(layout::kActionCompare)) return;
  Slot& mine = slots_[slot];
  mine.verdict = feedback.verdict();
  mine.verdict.text = pipeline::CleanText(mine.verdict.text, /*keep_newlines=*/true);
  if (mine.verdict.covered_replay != 0) mine.suppressed = feedback.suppressed();
  // A daemon that is killed while it changes the text leaves none.
  if (mine.verdict.state == VerdictState::kError && mine.verdict.text.empty()) {
    SetError(&mine.verdict, MissedText(mine.verdict));
  }
  const Result<void> usable = feedback.CanCompare();
  mine.usable = usable.ok();
  if (!mine.usable) {
    SetError(&mine.verdict, "the expected tensor cannot be read: " + usable.error().message);
  }
  feedback.SetVerdict(mine.verdict);
}

// Counts replays after the covered ones and up to `last_missed` that nobody will compare.
bool CompareSink::CountMissed(Slot* slot, std::uint32_t every, std::uint64_t last_missed) {
  layout::Verdict& verdict = slot->verdict;
  if (last_missed <= verdict.covered_replay) return false;
  const std::uint64_t missed =
      layout::WantedUpTo(every, last_missed) - layout::WantedUpTo(every, verdict.covered_replay);
  verdict.covered_replay = last_missed;
  if (missed == 0) return false;
  AddMissed(slot, missed);
  return true;
}

void CompareSink::AddMissed(Slot* slot, std::uint64_t missed) {
  slot->verdict.lost += missed;
  if (slot->usable) SetError(&slot->verdict, MissedText(slot->verdict));
}

bool CompareSink::CountMissedEntries(Slot* slot, std::uint64_t last_missed,
                                     std::uint64_t suppressed) {
  const bool lost = CountMissed(slot, /*every=*/1, last_missed);
  if (suppressed <= slot->suppressed) return lost;
  AddMissed(slot, suppressed - std::exchange(slot->suppressed, suppressed));
  return true;
}

void CompareSink::TakeComparison(const pipeline::Delivery& delivery, Slot* slot) {
  const pipeline::Snapshot& snapshot = *delivery.snapshot;
  const Result<numerics::CompareResult>& result = *delivery.comparison;
  layout::Verdict& verdict = slot->verdict;
  if (!result.ok()) {
    ++verdict.lost;
    return SetError(&verdict, "it cannot be compared: " + result.error().message);
  }
  ++verdict.compared;
  if (result->ok) {
    if (verdict.state == VerdictState::kNone) verdict.state = VerdictState::kPass;
    if (verdict.state == VerdictState::kError && verdict.lost > 0) {
      SetError(&verdict, MissedText(verdict));
    }
    return;
  }
  ++verdict.mismatched;
  if (verdict.state != VerdictState::kFail) {
    verdict.state = VerdictState::kFail;
    verdict.first_failed_replay = snapshot.replay;
    verdict.text = result->text.Whole();
  }
  events_->Add(snapshot.slot->session,
               pipeline::CompareFailure{delivery.snapshot, result->text.Whole()});
}

void CompareSink::Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) {
  if (delivery.seen_before) return;
  const auto found = slots_.find(delivery.snapshot->slot);
  if (found == slots_.end()) return;
  Slot& slot = found->second;
  const std::uint32_t every = found->first->registration.compare_every;
  const bool by_entry = CountsEntries(found->first);
  const std::uint64_t replay = delivery.snapshot->replay;
  const std::uint64_t place = by_entry ? delivery.snapshot->ordinal : replay;
  // Covered already: an earlier daemon was killed after it wrote the verdict and before it gave the
  // entry back.
  if (place <= slot.verdict.covered_replay) return;
  bool changed = by_entry ? CountMissedEntries(&slot, place - 1, feedback.suppressed())
                          : CountMissed(&slot, every, place - 1);
  if (by_entry) {
    slot.verdict.covered_replay = place;
    changed = true;
  }
  const bool is_reference = (found->first->registration.flags & layout::kCompareFirst) != 0 &&
                            delivery.snapshot->ordinal == 1;
  if (is_reference) {  // it is compared with nothing
    slot.verdict.covered_replay = place;
    changed = true;
  } else if (layout::Wants(every, replay) ||
             (delivery.snapshot->forced && delivery.snapshot->has_values)) {
    slot.verdict.covered_replay = place;
    changed = true;
    if (!delivery.snapshot->has_values) {
      ++slot.verdict.lost;
      if (slot.usable) SetError(&slot.verdict, MissedText(slot.verdict));
    } else if (slot.usable) {
      TakeComparison(delivery, &slot);
    } else {
      ++slot.verdict.lost;
    }
  }
  if (changed) feedback.SetVerdict(slot.verdict);
}

// The replays of other slots tell what was lost.
void CompareSink::Lose(const pipeline::Gap& gap) {
  const auto found = slots_.find(gap.slot);
  if (found != slots_.end()) found->second.last_lost = gap.last_ordinal;
}

void CompareSink::CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                            pipeline::SlotFeedback& feedback) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return;
  Slot& mine = found->second;
  if (CountsEntries(slot) ? CountMissedEntries(&mine, mine.last_lost, feedback.suppressed())
                          : CountMissed(&mine, slot->registration.compare_every, last_replay)) {
    feedback.SetVerdict(mine.verdict);
  }
  slots_.erase(found);
}

void CompareSink::ForgetSession(const pipeline::SessionPtr& session) {
  std::erase_if(slots_, [&](const auto& slot) { return slot.first->session == session; });
}

void CompareSink::ForgetSlot(const pipeline::SlotPtr& slot) { slots_.erase(slot); }

}  // namespace cgdebug::sinks
