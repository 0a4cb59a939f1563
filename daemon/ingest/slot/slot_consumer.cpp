#include "daemon/ingest/slot/slot_consumer.h"

#include <algorithm>
#include <utility>

namespace cgdebug::ingest {

using layout::LossCause;
using ring::ReadStatus;

SlotConsumer::SlotConsumer(pipeline::SlotPtr slot, ring::SlotRingReader ring,
                           ring::SegmentView* view, const Destination& destination, LogMasks* masks,
                           const std::vector<ring::OpLogRow>& rows, GpuClock* clock)
    : slot_(std::move(slot)),
      ring_(std::move(ring)),
      view_(view),
      destination_(destination),
      shown_(slot_, rows, destination),
      clock_(&ring_, clock),
      device_(&ring_, slot_->registration.device_capacity),
      controls_(slot_.get(), &ring_, &device_, destination.registry),
      comparison_(slot_.get(), &ring_, view),
      findings_(slot_.get(), &ring_, view, masks, &destination_),
      reader_(slot_, &ring_, &destination_, &progress_, &shown_, &clock_, &comparison_),
      contents_(slot_.get(), &ring_, &shown_, &clock_, &device_),
      counters_(destination.registry, shown_.slots(), shown_.are_rows()) {}

void SlotConsumer::Start() {
  const ring::Credit credit_untrusted = ring_.credit();
  progress_.consumed = std::min(credit_untrusted.consumed, ring_.accepted());
  progress_.lost = std::min(credit_untrusted.lost, progress_.consumed);
  progress_.bytes = (progress_.consumed - progress_.lost) * slot_->registration.payload_bytes;
  reader_.Start();
  device_.Start();
  controls_.Start(shown_.slots());
  Refresh();
  controls_.Show();
  comparison_.Start(progress_.consumed);
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    findings_.StartRow(shown_.slot(i), i);
    destination_.sink->OpenSlot(shown_.slot(i), *this);
  }
  if (!IsReadingAgain()) findings_.Report();
}

bool SlotConsumer::HasWork() const {
  return ring_.valid() && (IsReadingAgain() || ring_.accepted() > progress_.consumed);
}

bool SlotConsumer::CanAwaitClock() const {
  if (clock_.known()) return false;
  const layout::SlotFacts& registration = slot_->registration;
  const bool may_wait = registration.policy == static_cast<std::uint8_t>(layout::Policy::kWait) ||
                        (registration.flags & layout::kSlotLossless) != 0;
  return !may_wait || ring_.accepted() < progress_.consumed + registration.capacity;
}

pipeline::RingHead SlotConsumer::head() const {
  const layout::SlotHead now = ring_.head();
  const layout::SlotHead& head = ring_.valid() ? now : last_head_;
  return {slot_, head.accepted, head.replay, head.suppressed};
}

SlotConsumer::Step SlotConsumer::Commit() {
  EntryReader::Prepared& prepared = reader_.prepared();
  if (prepared.cut_off) return Step::kIdle;
  if (prepared.seen_before) Deliver(&prepared);
  // The sinks have everything there is of earlier replays.
  if (!IsReadingAgain()) findings_.Report();
  if (prepared.seen_before) return Step::kConsumed;
  const ring::Entry& entry = prepared.entry;
  switch (prepared.status) {
    case ReadStatus::kOk:
      Deliver(&prepared);
      return Step::kConsumed;
    case ReadStatus::kGone:
      return Step::kGone;
    case ReadStatus::kDamaged: {
      const bool forced = prepared.Has(layout::kEntryForced);
      ReportLoss(LastBefore(entry.replay), entry.replay, LossCause::kOverwritten, forced);
      progress_.Lose(progress_.consumed + 2);
      ++(prepared.no_memory ? progress_.without_memory : progress_.damaged);
      ReportLoss(entry.replay, entry.replay,
                 prepared.no_memory ? LossCause::kNoMemory : LossCause::kCorrupted, forced);
      Refresh();
      return Step::kConsumed;
    }
    case ReadStatus::kNone:
    case ReadStatus::kOverwritten:
      PublishCredit(0);
      Refresh();
      return HasWork() ? Step::kComing : Step::kIdle;
  }
  return Step::kIdle;
}

// The newest replay that a snapshot before one of `replay` can belong to.
std::uint64_t SlotConsumer::LastBefore(std::uint64_t replay) const {
  return slot_->IsInBody() ? replay : replay - 1;
}

void SlotConsumer::ReportLoss(std::uint64_t last_replay, std::uint64_t before_replay,
                              LossCause cause, bool before_forced) {
  if (progress_.unreported != 0) {
    shown_.Lose({slot_, cause, std::exchange(progress_.unreported, 0), progress_.consumed,
                 last_replay, before_replay, before_forced});
  }
}

void SlotConsumer::Deliver(EntryReader::Prepared* prepared) {
  const ring::Entry& entry = prepared->entry;
  clock_.SeeDelivered(entry.timestamp_ns);
  if (!prepared->seen_before) {
    const bool forced = prepared->Has(layout::kEntryForced);
    ReportLoss(LastBefore(entry.replay), entry.replay, LossCause::kOverwritten, forced);
    progress_.consumed = entry.ordinal;
    if (prepared->is_header_alone()) {
      destination_.registry->NoteUnseen(slot_);
      shown_.Lose({slot_, LossCause::kOnDevice, 1, progress_.consumed, entry.replay, 0, forced});
      return Refresh();
    }
  }
  const pipeline::SnapshotPtr of_page = shown_.are_rows() ? shown_.made(0).snapshot : nullptr;
  if (of_page != nullptr) findings_.BeginPage(*of_page);
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    auto [snapshot, payload] = shown_.Take(i);
    const LogMasks::Answer is_mask = findings_.IsMask(i, snapshot);
    if (is_mask != LogMasks::Answer::kNo) {  // where it cannot be told yet, a finding will say so
      auto mask = std::make_shared<pipeline::Snapshot>(*snapshot);
      mask->is_mask = true;
      snapshot = std::move(mask);
    }
    destination_.sink->Consume(
        {snapshot, payload, prepared->seen_before, std::move(prepared->comparison)}, *this);
    findings_.Look(shown_.slot(i), i, *snapshot, is_mask);
  }
  if (of_page != nullptr) findings_.EndPage(*of_page);
  if (prepared->seen_before) return;  // Commit() reports it when the sinks have all of them
  findings_.Report();
  Refresh();
}

void SlotConsumer::PublishCredit(std::uint64_t entries) {
  if (!ring_.valid() || ring_.consumed() == progress_.consumed) return;
  ring_.SetConsumed(progress_.consumed, progress_.lost);
  view_->AddProgress(std::max<std::uint64_t>(entries, 1));
}

void SlotConsumer::Refresh() {
  const layout::SlotHead head_untrusted = ring_.head();
  if (!ring_.valid()) return;
  last_head_ = head_untrusted;
  device_.EndAnswered();
  ShownCounters::State state;
  state.counters = progress_.Counters(head_untrusted);
  clock_.SeeHead(head_untrusted.last_timestamp_ns);
  state.retired = ring_.retired();
  state.last_timestamp_ns = clock_.last_ns();
  state.reached = head_untrusted.reached;
  state.reached_ns = clock_.ToHost(head_untrusted.reached_ns);
  counters_.Show(state);
  controls_.EndIfOver(head_untrusted, progress_.consumed);
}

void SlotConsumer::SetControl(const pipeline::ControlChange& change) {
  if (ring_.valid()) controls_.Set(change, shown_.NumberOf(change.slot));
}

void SlotConsumer::Finish() {
  if (!ring_.valid()) return;
  const std::uint64_t accepted = ring_.accepted();
  if (accepted > progress_.consumed) progress_.Lose(accepted + 1);
  progress_.at_death = ring_.HasUncommitted() ? 1 : 0;
  // A kernel counts a replay when it commits it, the other lanes when it begins.
  const bool counted = slot_->registration.lane != static_cast<std::uint8_t>(layout::Lane::kDirect);
  const std::uint64_t committed = ring_.replay() - (counted ? progress_.at_death : 0);
  ReportLoss(committed, 0, LossCause::kOverwritten);
  if (progress_.at_death != 0) {
    shown_.Lose({slot_, LossCause::kAtDeath, 1, progress_.consumed + 1, committed + 1, 0});
  }
  destination_.sink->Flush();
  PublishCredit(0);
  shown_.Close(ring_.replay(), *this);
  Refresh();
}

void SlotConsumer::GiveUp() {
  ShownCounters::State state = counters_.state();
  pipeline::Counters& counters = state.counters;
  ReportLoss(counters.replays, 0, LossCause::kOverwritten);
  if (counters.produced > progress_.consumed) {
    shown_.Lose({slot_, LossCause::kReleased, counters.produced - progress_.consumed,
                 counters.produced, counters.replays, 0});
  }
  shown_.Close(counters.replays, *this);
  counters.produced = counters.consumed + counters.lost_overwritten + counters.lost_damaged +
                      counters.lost_no_memory;
  state.retired = true;
  state.last_timestamp_ns = clock_.last_ns();
  counters_.Show(state);
}

void SlotConsumer::AddPrinted(std::uint64_t lines, std::uint64_t on_terminal) {
  view_->AddPrinted(lines, on_terminal);
}

void SlotConsumer::SetVerdict(const layout::Verdict& verdict) {
  if (ring_.valid()) ring_.SetVerdict(verdict);
  destination_.registry->SetVerdict(slot_, verdict);
  if (verdict.state == layout::VerdictState::kFail) findings_.AddMismatch(slot_, verdict);
}

}  // namespace cgdebug::ingest
