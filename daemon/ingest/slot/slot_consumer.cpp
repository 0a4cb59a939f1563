#include "daemon/ingest/slot/slot_consumer.h"

#include <algorithm>
#include <new>
#include <utility>

#include "daemon/core/base/terminate.h"
#include "daemon/ingest/sigbus_guard.h"

namespace cgdebug::ingest {

using layout::LossCause;
using ring::ReadStatus;

namespace {

// How much of a slot is read again when a daemon takes over. More is read when somebody asks for
// it.
constexpr std::uint64_t kAgainBytes = 1u << 20;
constexpr std::uint64_t kAgainAtLeast = 2;

// Whether there is nothing but the header: values and statistics are on the device.
bool IsHeaderAlone(const ring::Entry& entry) {
  return (entry.flags & layout::kEntryOnDevice) != 0 && (entry.flags & layout::kEntryIsStats) == 0;
}

}  // namespace

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
      contents_(slot_.get(), &ring_, &shown_, &clock_, &device_),
      counters_(destination.registry, shown_.slots(), shown_.are_rows()) {}

void SlotConsumer::Start() {
  const ring::Credit credit_untrusted = ring_.credit();
  progress_.consumed = std::min(credit_untrusted.consumed, ring_.accepted());
  consumed_before_ = progress_.consumed;
  progress_.lost = std::min(credit_untrusted.lost, progress_.consumed);
  progress_.bytes = (progress_.consumed - progress_.lost) * slot_->registration.payload_bytes;
  device_.Start();
  controls_.Start(shown_.slots());
  Refresh();
  controls_.Show();
  comparison_.Start(progress_.consumed);
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    findings_.StartRow(shown_.slot(i), i);
    destination_.sink->OpenSlot(shown_.slot(i), *this);
  }
  // At most a ring full, whatever the producer does to its head meanwhile.
  const std::uint64_t capacity = slot_->registration.capacity;
  const std::uint64_t affordable = kAgainBytes / std::max<std::uint64_t>(payload_bytes(), 1);
  const std::uint64_t wanted = NeedsAllAgain() || slot_->IsOnDevice()
                                   ? capacity
                                   : std::min(capacity, std::max(affordable, kAgainAtLeast));
  if (progress_.consumed != 0) {
    again_ = progress_.consumed > wanted ? progress_.consumed - wanted + 1 : 1;
  }
  if (again_ == 0) findings_.Report();
}

bool SlotConsumer::HasWork() const {
  return ring_.valid() && (again_ != 0 || ring_.accepted() > progress_.consumed);
}

bool SlotConsumer::CanAwaitClock() const {
  if (clock_.known()) return false;
  const layout::SlotFacts& registration = slot_->registration;
  const bool may_wait = registration.policy == static_cast<std::uint8_t>(layout::Policy::kWait) ||
                        (registration.flags & layout::kSlotLossless) != 0;
  return !may_wait || ring_.accepted() < progress_.consumed + registration.capacity;
}

// A recording that continues an earlier daemon's may lack some of these.
bool SlotConsumer::NeedsAllAgain() const { return slot_->Has(layout::kActionRecordToDisk); }

// Reads large ones again only while there is nothing new: their writer may be waiting.
void SlotConsumer::PrepareAgain() {
  const bool is_large = payload_bytes() > kAgainBytes / kAgainAtLeast && !slot_->IsOnDevice();
  if (is_large && !NeedsAllAgain() && ring_.accepted() > progress_.consumed) {
    again_ = 0;
    return;
  }
  const std::uint64_t ordinal = again_;
  again_ = ordinal < consumed_before_ ? ordinal + 1 : 0;
  try {
    const MayRunOutOfMemory large;
    if (shown_.Read(ring_, ordinal, &prepared_.entry) != ReadStatus::kOk) return;
    // The earlier daemon's note that nobody saw these values ended with it.
    if (IsHeaderAlone(prepared_.entry)) return destination_.registry->NoteUnseen(slot_);
    const std::uint64_t bytes = progress_.bytes;  // that snapshot is in there already
    MakeSnapshot();
    progress_.bytes = bytes;
    prepared_.seen_before = true;
  } catch (const std::bad_alloc&) {  // an earlier daemon delivered it
    shown_.DropMade();
  }
}

pipeline::RingHead SlotConsumer::head() const {
  const layout::SlotHead now = ring_.head();
  const layout::SlotHead& head = ring_.valid() ? now : last_head_;
  return {slot_, head.accepted, head.replay, head.suppressed};
}

void SlotConsumer::Prepare() {
  const SigbusGuard guard;
  prepared_.no_memory = prepared_.seen_before = false;
  while (again_ != 0 && !prepared_.seen_before && !SigbusGuard::Hit()) PrepareAgain();
  if (prepared_.seen_before || SigbusGuard::Hit()) {
    prepared_.cut_off = SigbusGuard::Hit();
    return;
  }
  try {
    const MayRunOutOfMemory large;
    // Kept until the snapshot is made of it.
    const pipeline::PayloadPtr held =
        last_payload_.number == 0 ? nullptr : shown_.previous_payload();
    prepared_.status = ReadNext(held == nullptr ? ring::PayloadId{} : last_payload_);
    if (prepared_.entry.is_held) {  // the buffer is given back
      destination_.payloads->Share(std::exchange(prepared_.entry.payload, {}));
    }
    if (prepared_.status == ReadStatus::kOk) {
      if (!IsHeaderAlone(prepared_.entry)) MakeSnapshot();
      if (!shown_.are_rows()) {
        prepared_.comparison = comparison_.Compare(prepared_.entry, shown_.made(0));
      }
    }
  } catch (const std::bad_alloc&) {  // most likely a large tensor; small ones go on
    prepared_.status = ReadStatus::kDamaged;
    prepared_.no_memory = true;
    progress_.Lose(prepared_.entry.ordinal);
    prepared_.entry = {.ordinal = prepared_.entry.ordinal,
                       .replay = prepared_.entry.replay,
                       .flags = prepared_.entry.flags,
                       .payload = {}};
    shown_.ForgetMade();
  }
  prepared_.cut_off = SigbusGuard::Hit();
}

ReadStatus SlotConsumer::ReadNext(ring::PayloadId held) {
  if (!ring_.valid()) return ReadStatus::kGone;
  const std::uint64_t accepted = ring_.accepted();
  if (accepted <= progress_.consumed) return ReadStatus::kNone;
  std::uint64_t next = std::max(progress_.consumed + 1, ring_.oldest(accepted));
  // A slot that sends only statistics would take a buffer that others need, and drop it.
  const bool had_values =
      (prepared_.entry.flags & (layout::kEntryIsStats | layout::kEntryOnDevice)) == 0;
  if (had_values && prepared_.entry.payload.empty()) {
    prepared_.entry.payload = destination_.payloads->Take(payload_bytes());
  }
  ReadStatus status = shown_.Read(ring_, next, &prepared_.entry, held);
  if (status == ReadStatus::kOverwritten) {
    // The writer is faster than this reader: skip half a ring, or the next entry is lost as well.
    const std::uint64_t newest = ring_.accepted();
    const std::uint64_t ahead =
        newest - std::min<std::uint64_t>(newest, slot_->registration.capacity / 2);
    next = std::max(ahead, next + 1);
    status = shown_.Read(ring_, next, &prepared_.entry, held);
  }
  // If the block was reassigned meanwhile, this head may belong to its new owner.
  if (status != ReadStatus::kGone) progress_.Lose(next);
  return status;
}

SlotConsumer::Step SlotConsumer::Commit() {
  if (prepared_.cut_off) return Step::kIdle;
  if (prepared_.seen_before) Deliver(true);
  if (again_ == 0) findings_.Report();  // the sinks have everything there is of earlier replays
  if (prepared_.seen_before) return Step::kConsumed;
  const ring::Entry& entry = prepared_.entry;
  switch (prepared_.status) {
    case ReadStatus::kOk:
      Deliver(false);
      return Step::kConsumed;
    case ReadStatus::kGone:
      return Step::kGone;
    case ReadStatus::kDamaged: {
      const bool forced = (entry.flags & layout::kEntryForced) != 0;
      ReportLoss(LastBefore(entry.replay), entry.replay, LossCause::kOverwritten, forced);
      progress_.Lose(progress_.consumed + 2);
      ++(prepared_.no_memory ? progress_.without_memory : progress_.damaged);
      ReportLoss(entry.replay, entry.replay,
                 prepared_.no_memory ? LossCause::kNoMemory : LossCause::kCorrupted, forced);
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

void SlotConsumer::Progress::Lose(std::uint64_t first_readable) {
  const std::uint64_t count = first_readable - 1 - consumed;
  consumed += count;
  lost += count;
  unreported += count;
}

pipeline::Counters SlotConsumer::Progress::Counters(const layout::SlotHead& head_untrusted) const {
  pipeline::Counters counters;
  counters.replays = head_untrusted.replay;
  counters.produced = std::max(head_untrusted.accepted, consumed);
  counters.consumed = consumed - lost;
  counters.lost_overwritten = lost - damaged - without_memory;
  counters.lost_damaged = damaged;
  counters.lost_no_memory = without_memory;
  counters.suppressed = head_untrusted.suppressed;
  counters.lost_at_death = at_death;
  counters.overwrote_unread = head_untrusted.overwrote_unread;
  counters.waits = head_untrusted.waits;
  counters.wait_ns = head_untrusted.wait_ns;
  counters.bytes = bytes;
  counters.taken = head_untrusted.taken;
  counters.graph_replays = head_untrusted.graph_replays;
  counters.passed = head_untrusted.passed;
  counters.unchanged = head_untrusted.unchanged;
  return counters;
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

void SlotConsumer::MakeSnapshot() {
  prepared_.entry.timestamp_ns = clock_.Next(prepared_.entry.timestamp_ns);
  const bool is_stats = (prepared_.entry.flags & layout::kEntryIsStats) != 0;
  const bool triggered = (prepared_.entry.flags & layout::kEntryTriggered) != 0;
  progress_.bytes += is_stats ? sizeof(prepared_.entry.stats) : prepared_.entry.payload.size();
  const layout::SlotControl control = triggered ? ring_.control() : layout::SlotControl{};
  shown_.Make(&prepared_.entry, control);
  if (shown_.are_rows()) return;
  last_payload_ =
      shown_.made(0).payload == nullptr ? ring::PayloadId{} : prepared_.entry.payload_id;
}

void SlotConsumer::Deliver(bool seen_before) {
  clock_.SeeDelivered(prepared_.entry.timestamp_ns);
  if (!seen_before) {
    const bool forced = (prepared_.entry.flags & layout::kEntryForced) != 0;
    ReportLoss(LastBefore(prepared_.entry.replay), prepared_.entry.replay, LossCause::kOverwritten,
               forced);
    progress_.consumed = prepared_.entry.ordinal;
    if (IsHeaderAlone(prepared_.entry)) {
      destination_.registry->NoteUnseen(slot_);
      shown_.Lose(
          {slot_, LossCause::kOnDevice, 1, progress_.consumed, prepared_.entry.replay, 0, forced});
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
    destination_.sink->Consume({snapshot, payload, seen_before, std::move(prepared_.comparison)},
                               *this);
    findings_.Look(shown_.slot(i), i, *snapshot, is_mask);
  }
  if (of_page != nullptr) findings_.EndPage(*of_page);
  if (seen_before) return;  // Commit() reports it when the sinks have all of them
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
