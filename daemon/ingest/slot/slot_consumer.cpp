#include "daemon/ingest/slot/slot_consumer.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "daemon/core/base/realtime.h"
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

// What an entry of an op log says about one row.
ring::Entry RowOf(const ring::Entry& entry, std::size_t number) {
  ring::Entry row = {.ordinal = entry.ordinal,
                     .replay = entry.replay,
                     .iteration = entry.iteration,
                     .serial = entry.serial,
                     .timestamp_ns = entry.timestamp_ns,
                     .step = entry.step,
                     .flags = (entry.flags & layout::kEntryForced) | layout::kEntryIsStats,
                     .payload = {}};
  std::memcpy(&row.stats, entry.payload.data() + number * sizeof(row.stats), sizeof(row.stats));
  return row;
}

}  // namespace

SlotConsumer::SlotConsumer(pipeline::SlotPtr slot, ring::SlotRingReader ring,
                           ring::SegmentView* view, const Destination& destination, LogMasks* masks,
                           const std::vector<ring::OpLogRow>& rows, GpuClock* clock)
    : slot_(std::move(slot)),
      ring_(std::move(ring)),
      view_(view),
      destination_(destination),
      shown_(ShownOf(rows)),
      device_(&ring_, slot_->registration.device_capacity),
      controls_(slot_.get(), &ring_, &device_, destination.registry),
      comparison_(slot_.get(), &ring_, view),
      findings_(slot_.get(), &ring_, view, masks, &destination_),
      counters_(destination.registry, shown_slots(), HoldsOpLog()),
      clock_(clock) {}

std::vector<SlotConsumer::ShownSlot> SlotConsumer::ShownOf(
    const std::vector<ring::OpLogRow>& rows) const {
  const pipeline::SnapshotMaker maker(destination_.payloads);
  if (!HoldsOpLog()) return {{.slot = slot_, .maker = maker}};
  std::vector<ShownSlot> shown;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    shown.push_back({.slot = std::make_shared<const pipeline::SlotIdentity>(
                         pipeline::MakeRowIdentity(*slot_, i, rows[i])),
                     .maker = maker});
  }
  return shown;
}

std::vector<pipeline::SlotPtr> SlotConsumer::shown_slots() const {
  std::vector<pipeline::SlotPtr> slots;
  for (const ShownSlot& shown : shown_) slots.push_back(shown.slot);
  return slots;
}

// The indexes of an op log's rows follow one another.
std::size_t SlotConsumer::NumberOf(const pipeline::SlotPtr& slot) const {
  if (shown_.empty() || slot->index < shown_.front().slot->index) return shown_.size();
  const std::size_t number = slot->index - shown_.front().slot->index;
  return number < shown_.size() && shown_[number].slot == slot ? number : shown_.size();
}

void SlotConsumer::Start() {
  const ring::Credit credit_untrusted = ring_.credit();
  progress_.consumed = std::min(credit_untrusted.consumed, ring_.accepted());
  consumed_before_ = progress_.consumed;
  progress_.lost = std::min(credit_untrusted.lost, progress_.consumed);
  progress_.bytes = (progress_.consumed - progress_.lost) * slot_->registration.payload_bytes;
  device_.Start();
  controls_.Start(shown_slots());
  Refresh();
  controls_.Show();
  comparison_.Start(progress_.consumed);
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    findings_.StartRow(shown_[i].slot, i);
    destination_.sink->OpenSlot(shown_[i].slot, *this);
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

void SlotConsumer::WatchClock(std::int64_t looked_ns) {
  if (clock_ == nullptr) return;
  const std::int64_t stamp_ns = ring_.last_timestamp_ns();
  if (seen_stamp_ns_ == stamp_ns) return;
  const std::int64_t now_ns = RealtimeNs();
  if (!ring_.valid()) return;
  const bool looked = seen_stamp_ns_.has_value();
  clock_->See(stamp_ns, looked ? std::optional(looked_ns) : std::nullopt, now_ns);
  seen_stamp_ns_ = stamp_ns;
}

bool SlotConsumer::CanAwaitClock() const {
  if (clock_ == nullptr || clock_->known()) return false;
  const layout::SlotFacts& registration = slot_->registration;
  const bool may_wait = registration.policy == static_cast<std::uint8_t>(layout::Policy::kWait) ||
                        (registration.flags & layout::kSlotLossless) != 0;
  return !may_wait || ring_.accepted() < progress_.consumed + registration.capacity;
}

std::int64_t SlotConsumer::HostTime(std::int64_t timestamp_ns, std::int64_t not_before_ns) const {
  if (clock_ == nullptr) return timestamp_ns;
  return std::min(std::max(clock_->ToHost(timestamp_ns), not_before_ns), RealtimeNs());
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
    if (ReadRing(ordinal, &prepared_.entry) != ReadStatus::kOk) return;
    // The earlier daemon's note that nobody saw these values ended with it.
    if (IsHeaderAlone(prepared_.entry)) return destination_.registry->NoteUnseen(slot_);
    const std::uint64_t bytes = progress_.bytes;  // that snapshot is in there already
    MakeSnapshot();
    progress_.bytes = bytes;
    prepared_.seen_before = true;
  } catch (const std::bad_alloc&) {  // an earlier daemon delivered it
    DropMade();
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
        last_payload_.number == 0 ? nullptr : shown_.front().maker.previous_payload();
    prepared_.status = ReadNext(held == nullptr ? ring::PayloadId{} : last_payload_);
    if (prepared_.entry.is_held) {  // the buffer is given back
      destination_.payloads->Share(std::exchange(prepared_.entry.payload, {}));
    }
    if (prepared_.status == ReadStatus::kOk) {
      if (!IsHeaderAlone(prepared_.entry)) MakeSnapshot();
      if (!HoldsOpLog()) {
        prepared_.comparison = comparison_.Compare(prepared_.entry, shown_.front().made);
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
    DropMade();
    for (ShownSlot& shown : shown_) shown.maker = pipeline::SnapshotMaker(destination_.payloads);
  }
  prepared_.cut_off = SigbusGuard::Hit();
}

void SlotConsumer::DropMade() {
  for (ShownSlot& shown : shown_) shown.made = {};
}

// The ring knows nothing of rows. If one of them cannot be true, none of that entry is believed.
ReadStatus SlotConsumer::ReadRing(std::uint64_t ordinal, ring::Entry* entry,
                                  ring::PayloadId held) const {
  const ReadStatus status = ring_.Read(ordinal, entry, held);
  if (status != ReadStatus::kOk || !HoldsOpLog()) return status;
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    if (!ring::IsPlausible(RowOf(*entry, i).stats, shown_[i].slot->registration)) {
      return ReadStatus::kDamaged;
    }
  }
  return status;
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
  ReadStatus status = ReadRing(next, &prepared_.entry, held);
  if (status == ReadStatus::kOverwritten) {
    // The writer is faster than this reader: skip half a ring, or the next entry is lost as well.
    const std::uint64_t newest = ring_.accepted();
    const std::uint64_t ahead =
        newest - std::min<std::uint64_t>(newest, slot_->registration.capacity / 2);
    next = std::max(ahead, next + 1);
    status = ReadRing(next, &prepared_.entry, held);
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

// The newest replay that a snapshot before one of `replay` can belong to.
std::uint64_t SlotConsumer::LastBefore(std::uint64_t replay) const {
  return slot_->IsInBody() ? replay : replay - 1;
}

void SlotConsumer::ReportLoss(std::uint64_t last_replay, std::uint64_t before_replay,
                              LossCause cause, bool before_forced) {
  if (progress_.unreported != 0) {
    LoseInSinks({slot_, cause, std::exchange(progress_.unreported, 0), progress_.consumed,
                 last_replay, before_replay, before_forced});
  }
}

void SlotConsumer::LoseInSinks(pipeline::Gap gap) {
  for (const ShownSlot& shown : shown_) {
    gap.slot = shown.slot;
    destination_.sink->Lose(gap);
  }
}

void SlotConsumer::CloseInSinks(std::uint64_t last_replay) {
  for (const ShownSlot& shown : shown_) {
    destination_.sink->CloseSlot(shown.slot, last_replay, *this);
  }
}

void SlotConsumer::MakeSnapshot() {
  prepared_.entry.timestamp_ns = HostTime(prepared_.entry.timestamp_ns, made_timestamp_ns_);
  made_timestamp_ns_ = std::max(made_timestamp_ns_, prepared_.entry.timestamp_ns);
  const bool is_stats = (prepared_.entry.flags & layout::kEntryIsStats) != 0;
  const bool triggered = (prepared_.entry.flags & layout::kEntryTriggered) != 0;
  progress_.bytes += is_stats ? sizeof(prepared_.entry.stats) : prepared_.entry.payload.size();
  const layout::SlotControl control = triggered ? ring_.control() : layout::SlotControl{};
  if (!HoldsOpLog()) {
    ShownSlot& shown = shown_.front();
    shown.made = shown.maker.Make(shown.slot, &prepared_.entry, control);
    last_payload_ = shown.made.payload == nullptr ? ring::PayloadId{} : prepared_.entry.payload_id;
    return;
  }
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    ring::Entry row = RowOf(prepared_.entry, i);
    shown_[i].made = shown_[i].maker.Make(shown_[i].slot, &row, control);
  }
}

void SlotConsumer::Deliver(bool seen_before) {
  last_timestamp_ns_ = std::max(last_timestamp_ns_, prepared_.entry.timestamp_ns);
  if (!seen_before) {
    const bool forced = (prepared_.entry.flags & layout::kEntryForced) != 0;
    ReportLoss(LastBefore(prepared_.entry.replay), prepared_.entry.replay, LossCause::kOverwritten,
               forced);
    progress_.consumed = prepared_.entry.ordinal;
    if (IsHeaderAlone(prepared_.entry)) {
      destination_.registry->NoteUnseen(slot_);
      LoseInSinks(
          {slot_, LossCause::kOnDevice, 1, progress_.consumed, prepared_.entry.replay, 0, forced});
      return Refresh();
    }
  }
  const pipeline::SnapshotPtr of_page = HoldsOpLog() ? shown_.front().made.snapshot : nullptr;
  if (of_page != nullptr) findings_.BeginPage(*of_page);
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    auto [snapshot, payload] = std::exchange(shown_[i].made, {});
    const LogMasks::Answer is_mask = findings_.IsMask(i, snapshot);
    if (is_mask != LogMasks::Answer::kNo) {  // where it cannot be told yet, a finding will say so
      auto mask = std::make_shared<pipeline::Snapshot>(*snapshot);
      mask->is_mask = true;
      snapshot = std::move(mask);
    }
    destination_.sink->Consume({snapshot, payload, seen_before, std::move(prepared_.comparison)},
                               *this);
    findings_.Look(shown_[i].slot, i, *snapshot, is_mask);
  }
  if (of_page != nullptr) findings_.EndPage(*of_page);
  if (seen_before) return;  // Commit() reports it when the sinks have all of them
  findings_.Report();
  Refresh();
}

pipeline::RingContent SlotConsumer::Read(const pipeline::RingRequest& request,
                                         bool producer_alive) {
  device_.EndAnswered();
  // No replay sends values of a graph that is gone. At its end the job does, for a recording.
  const bool is_one = request.newest || request.replay != 0;
  const bool is_sent = producer_alive && !(is_one && ring_.retired());
  pipeline::RingContent content;
  content.newest = ring_.accepted();
  content.oldest = ring_.oldest(content.newest);
  content.next = std::max(request.first_ordinal, content.oldest);
  std::uint64_t last = std::min(request.last_ordinal, content.newest);
  if (request.replay != 0) {
    last = ring_.FindReplay(request.replay, request.iteration);
    content.next = std::max<std::uint64_t>(last, 1);
  }
  if (request.newest) {
    last = content.newest;
    if (slot_->IsOnDevice() && is_sent && last != 0) {
      last = device_.Newest(request.at_least == 0 ? last : request.at_least);
    }
    content.waiting = last == 0 && content.newest != 0;
    content.next = std::max<std::uint64_t>(last, 1);
  }
  std::size_t bytes = 0;
  for (; content.next <= last && (bytes == 0 || bytes < request.max_bytes); ++content.next) {
    ring::Entry entry;
    ReadStatus status = ReadStatus::kNone;
    try {
      const MayRunOutOfMemory large;
      status = ReadRing(content.next, &entry);
    } catch (const std::bad_alloc&) {
      content.unreadable.emplace(content.next, LossCause::kNoMemory);
    }
    if (status == ReadStatus::kDamaged) {
      content.unreadable.emplace(content.next, LossCause::kCorrupted);
    }
    if (status != ReadStatus::kOk) continue;
    entry.timestamp_ns = HostTime(entry.timestamp_ns);
    if ((entry.flags & layout::kEntryOnDevice) != 0) {
      if (!is_sent || !device_.MayCome(content.next)) {
        content.unreadable.emplace(content.next, LossCause::kOnDevice);
        continue;
      }
      device_.Ask(content.next);
      content.waiting = content.entries.empty();
      break;
    }
    bytes += sizeof(entry) + entry.payload.size();
    content.entries.push_back(HoldsOpLog() ? RowOf(entry, NumberOf(request.slot))
                                           : std::move(entry));
  }
  content.readable = ring_.valid();
  return content;
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
  pipeline::Counters& counters = state.counters;
  counters.replays = head_untrusted.replay;
  counters.produced = std::max(head_untrusted.accepted, progress_.consumed);
  counters.consumed = progress_.consumed - progress_.lost;
  counters.lost_overwritten = progress_.lost - progress_.damaged - progress_.without_memory;
  counters.lost_damaged = progress_.damaged;
  counters.lost_no_memory = progress_.without_memory;
  counters.suppressed = head_untrusted.suppressed;
  counters.lost_at_death = progress_.at_death;
  counters.overwrote_unread = head_untrusted.overwrote_unread;
  counters.waits = head_untrusted.waits;
  counters.wait_ns = head_untrusted.wait_ns;
  counters.bytes = progress_.bytes;
  counters.taken = head_untrusted.taken;
  counters.graph_replays = head_untrusted.graph_replays;
  counters.passed = head_untrusted.passed;
  counters.unchanged = head_untrusted.unchanged;
  const std::int64_t last_ns = HostTime(head_untrusted.last_timestamp_ns, made_timestamp_ns_);
  last_timestamp_ns_ = clock_ == nullptr ? std::max(last_timestamp_ns_, last_ns) : last_ns;
  state.retired = ring_.retired();
  state.last_timestamp_ns = last_timestamp_ns_;
  state.reached = head_untrusted.reached;
  state.reached_ns = HostTime(head_untrusted.reached_ns);
  counters_.Show(state);
  controls_.EndIfOver(head_untrusted, progress_.consumed);
}

void SlotConsumer::SetControl(const pipeline::ControlChange& change) {
  if (ring_.valid()) controls_.Set(change, NumberOf(change.slot));
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
    LoseInSinks({slot_, LossCause::kAtDeath, 1, progress_.consumed + 1, committed + 1, 0});
  }
  destination_.sink->Flush();
  PublishCredit(0);
  CloseInSinks(ring_.replay());
  Refresh();
}

void SlotConsumer::GiveUp() {
  ShownCounters::State state = counters_.state();
  pipeline::Counters& counters = state.counters;
  ReportLoss(counters.replays, 0, LossCause::kOverwritten);
  if (counters.produced > progress_.consumed) {
    LoseInSinks({slot_, LossCause::kReleased, counters.produced - progress_.consumed,
                 counters.produced, counters.replays, 0});
  }
  CloseInSinks(counters.replays);
  counters.produced = counters.consumed + counters.lost_overwritten + counters.lost_damaged +
                      counters.lost_no_memory;
  state.retired = true;
  state.last_timestamp_ns = last_timestamp_ns_;
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
