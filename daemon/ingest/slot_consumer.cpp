#include "daemon/ingest/slot_consumer.h"

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

bool AreEqual(const pipeline::Counters& a, const pipeline::Counters& b) {
  bool are_equal = true;
  pipeline::Counters::ForEachCounter(
      [&](const layout::Field&, auto member) { are_equal = are_equal && a.*member == b.*member; });
  return are_equal;
}

// The newest replay of the graph; a conditional body need not have run in it.
std::uint64_t NewestReplay(const layout::SlotHead& head) {
  return std::max(head.replay, head.graph_replays);
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
                           ring::SegmentView* view, const Destination& destination,
                           const std::vector<ring::OpLogRow>& rows, GpuClock* clock)
    : slot_(std::move(slot)),
      ring_(std::move(ring)),
      device_(&ring_, slot_->registration.device_capacity),
      view_(view),
      destination_(destination),
      clock_(clock) {
  const pipeline::SnapshotMaker maker(destination.payloads);
  if (!HoldsOpLog()) shown_.push_back({.slot = slot_, .maker = maker});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    shown_.push_back({.slot = std::make_shared<const pipeline::SlotIdentity>(
                          pipeline::MakeRowIdentity(*slot_, i, rows[i])),
                      .maker = maker});
  }
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
  consumed_ = std::min(credit_untrusted.consumed, ring_.accepted());
  consumed_before_ = consumed_;
  lost_ = std::min(credit_untrusted.lost, consumed_);
  bytes_ = (consumed_ - lost_) * slot_->registration.payload_bytes;
  control_ = ring_.control();  // set by an earlier daemon, whose recordings are over
  if (control_.lossless != layout::Lossless::kAsRegistered) {
    control_.lossless = layout::Lossless::kAsRegistered;
    ring_.SetControl(control_);
  }
  device_.Start();
  Refresh();
  if (ComparesProbe()) {
    OpenOther();
  } else if (ComparesFirst()) {
    FindReference();
  } else if (slot_->Has(layout::kActionCompare)) {
    expected_ = ReadExpected();
  }
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    const auto& [slot, maker, made, firsts, lossless] = shown_[i];
    destination_.registry->SetControl(slot, control_);
    shown_[i].firsts = HoldsOpLog() ? view_->firsts(slot_->registration, i) : ring_.firsts();
    destination_.registry->SetFirsts(slot, firsts);
    destination_.sink->OpenSlot(slot, *this);
    AddFinding(slot, pipeline::Finding::Kind::kNan, firsts.nan);
    AddFinding(slot, pipeline::Finding::Kind::kInf, firsts.inf);
  }
  // At most a ring full, whatever the producer does to its head meanwhile.
  const std::uint64_t capacity = slot_->registration.capacity;
  const std::uint64_t affordable = kAgainBytes / std::max<std::uint64_t>(payload_bytes(), 1);
  const std::uint64_t wanted = NeedsAllAgain() || slot_->IsOnDevice()
                                   ? capacity
                                   : std::min(capacity, std::max(affordable, kAgainAtLeast));
  if (consumed_ != 0) again_ = consumed_ > wanted ? consumed_ - wanted + 1 : 1;
  if (again_ == 0) TellFindings();
}

bool SlotConsumer::HasWork() const {
  return ring_.valid() && (again_ != 0 || ring_.accepted() > consumed_);
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
  return !may_wait || ring_.accepted() < consumed_ + registration.capacity;
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
  if (is_large && !NeedsAllAgain() && ring_.accepted() > consumed_) {
    again_ = 0;
    return;
  }
  const std::uint64_t ordinal = again_;
  again_ = ordinal < consumed_before_ ? ordinal + 1 : 0;
  try {
    const MayRunOutOfMemory large;
    if (ReadRing(ordinal, &entry_) != ReadStatus::kOk) return;
    // The earlier daemon's note that nobody saw these values ended with it.
    if (IsHeaderAlone(entry_)) return destination_.registry->NoteUnseen(slot_);
    const std::uint64_t bytes = bytes_;  // that snapshot is in there already
    MakeSnapshot();
    bytes_ = bytes;
    is_again_ = true;
  } catch (const std::bad_alloc&) {  // an earlier daemon delivered it
    DropMade();
  }
}

pipeline::RingHead SlotConsumer::head() const {
  const layout::SlotHead head = ring_.head();
  return {slot_, head.accepted, head.replay, head.suppressed};
}

void SlotConsumer::Prepare() {
  const SigbusGuard guard;
  no_memory_ = is_again_ = false;
  while (again_ != 0 && !is_again_ && !SigbusGuard::Hit()) PrepareAgain();
  if (is_again_ || SigbusGuard::Hit()) {
    cut_off_ = SigbusGuard::Hit();
    return;
  }
  try {
    const MayRunOutOfMemory large;
    // Kept until the snapshot is made of it.
    const pipeline::PayloadPtr held =
        last_payload_.number == 0 ? nullptr : shown_.front().maker.previous_payload();
    status_ = ReadNext(held == nullptr ? ring::PayloadId{} : last_payload_);
    if (entry_.is_held) {  // the buffer is given back
      destination_.payloads->Share(std::exchange(entry_.payload, {}));
    }
    if (status_ == ReadStatus::kOk) {
      if (!IsHeaderAlone(entry_)) MakeSnapshot();
      comparison_ = Compare();
    }
  } catch (const std::bad_alloc&) {  // most likely a large tensor; small ones go on
    status_ = ReadStatus::kDamaged;
    no_memory_ = true;
    Lose(entry_.ordinal);
    entry_ = {
        .ordinal = entry_.ordinal, .replay = entry_.replay, .flags = entry_.flags, .payload = {}};
    DropMade();
    for (ShownSlot& shown : shown_) shown.maker = pipeline::SnapshotMaker(destination_.payloads);
  }
  cut_off_ = SigbusGuard::Hit();
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
  if (accepted <= consumed_) return ReadStatus::kNone;
  std::uint64_t next = std::max(consumed_ + 1, ring_.oldest(accepted));
  // A slot that sends only statistics would take a buffer that others need, and drop it.
  const bool had_values = (entry_.flags & (layout::kEntryIsStats | layout::kEntryOnDevice)) == 0;
  if (had_values && entry_.payload.empty()) {
    entry_.payload = destination_.payloads->Take(payload_bytes());
  }
  ReadStatus status = ReadRing(next, &entry_, held);
  if (status == ReadStatus::kOverwritten) {
    // The writer is faster than this reader: skip half a ring, or the next entry is lost as well.
    const std::uint64_t newest = ring_.accepted();
    const std::uint64_t ahead =
        newest - std::min<std::uint64_t>(newest, slot_->registration.capacity / 2);
    next = std::max(ahead, next + 1);
    status = ReadRing(next, &entry_, held);
  }
  // If the block was reassigned meanwhile, this head may belong to its new owner.
  if (status != ReadStatus::kGone) Lose(next);
  return status;
}

SlotConsumer::Step SlotConsumer::Commit() {
  if (cut_off_) return Step::kIdle;
  if (is_again_) Deliver(true);
  if (again_ == 0) TellFindings();  // the sinks have everything there is of earlier replays
  if (is_again_) return Step::kConsumed;
  switch (status_) {
    case ReadStatus::kOk:
      Deliver(false);
      return Step::kConsumed;
    case ReadStatus::kGone:
      return Step::kGone;
    case ReadStatus::kDamaged: {
      const bool forced = (entry_.flags & layout::kEntryForced) != 0;
      ReportLoss(LastBefore(entry_.replay), entry_.replay, LossCause::kOverwritten, forced);
      Lose(consumed_ + 2);
      ++(no_memory_ ? lost_no_memory_ : lost_damaged_);
      ReportLoss(entry_.replay, entry_.replay,
                 no_memory_ ? LossCause::kNoMemory : LossCause::kCorrupted, forced);
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

// Counts everything before `first_readable` as overwritten.
void SlotConsumer::Lose(std::uint64_t first_readable) {
  const std::uint64_t count = first_readable - 1 - consumed_;
  consumed_ += count;
  lost_ += count;
  unreported_lost_ += count;
}

// The newest replay that a snapshot before one of `replay` can belong to.
std::uint64_t SlotConsumer::LastBefore(std::uint64_t replay) const {
  return slot_->IsInBody() ? replay : replay - 1;
}

void SlotConsumer::ReportLoss(std::uint64_t last_replay, std::uint64_t before_replay,
                              LossCause cause, bool before_forced) {
  if (unreported_lost_ != 0) {
    TellLoss({slot_, cause, std::exchange(unreported_lost_, 0), consumed_, last_replay,
              before_replay, before_forced});
  }
}

void SlotConsumer::TellLoss(pipeline::Gap gap) {
  for (const ShownSlot& shown : shown_) {
    gap.slot = shown.slot;
    destination_.sink->Lose(gap);
  }
}

void SlotConsumer::TellClosed(std::uint64_t last_replay) {
  for (const ShownSlot& shown : shown_) {
    destination_.sink->CloseSlot(shown.slot, last_replay, *this);
  }
}

void SlotConsumer::MakeSnapshot() {
  entry_.timestamp_ns = HostTime(entry_.timestamp_ns, made_timestamp_ns_);
  made_timestamp_ns_ = std::max(made_timestamp_ns_, entry_.timestamp_ns);
  const bool is_stats = (entry_.flags & layout::kEntryIsStats) != 0;
  const bool triggered = (entry_.flags & layout::kEntryTriggered) != 0;
  bytes_ += is_stats ? sizeof(entry_.stats) : entry_.payload.size();
  const layout::SlotControl control = triggered ? ring_.control() : layout::SlotControl{};
  if (!HoldsOpLog()) {
    ShownSlot& shown = shown_.front();
    shown.made = shown.maker.Make(shown.slot, &entry_, control);
    last_payload_ = shown.made.payload == nullptr ? ring::PayloadId{} : entry_.payload_id;
    return;
  }
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    ring::Entry row = RowOf(entry_, i);
    shown_[i].made = shown_[i].maker.Make(shown_[i].slot, &row, control);
  }
}

void SlotConsumer::Deliver(bool seen_before) {
  last_timestamp_ns_ = std::max(last_timestamp_ns_, entry_.timestamp_ns);
  if (!seen_before) {
    const bool forced = (entry_.flags & layout::kEntryForced) != 0;
    ReportLoss(LastBefore(entry_.replay), entry_.replay, LossCause::kOverwritten, forced);
    consumed_ = entry_.ordinal;
    if (IsHeaderAlone(entry_)) {
      destination_.registry->NoteUnseen(slot_);
      TellLoss({slot_, LossCause::kOnDevice, 1, consumed_, entry_.replay, 0, forced});
      return Refresh();
    }
  }
  for (ShownSlot& shown : shown_) DeliverOne(&shown, seen_before);
  if (seen_before) return;  // Commit() reports it when the sinks have all of them
  TellFindings();
  Refresh();
}

void SlotConsumer::DeliverOne(ShownSlot* shown, bool seen_before) {
  const auto [snapshot, payload] = std::exchange(shown->made, {});
  destination_.sink->Consume({snapshot, payload, seen_before, std::move(comparison_)}, *this);
  NoteFirsts(shown, *snapshot);
  for (pipeline::Finding& finding : findings_) {
    if (finding.replay != snapshot->replay) continue;
    finding.serial = snapshot->serial;
    finding.step = snapshot->step;
    finding.timestamp_ns = snapshot->timestamp_ns;
  }
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
  if (!ring_.valid() || ring_.consumed() == consumed_) return;
  ring_.SetConsumed(consumed_, lost_);
  view_->AddProgress(std::max<std::uint64_t>(entries, 1));
}

void SlotConsumer::Refresh() {
  const layout::SlotHead head_untrusted = ring_.head();
  if (!ring_.valid()) return;
  device_.EndAnswered();
  pipeline::Counters counters;
  counters.replays = head_untrusted.replay;
  counters.produced = std::max(head_untrusted.accepted, consumed_);
  counters.consumed = consumed_ - lost_;
  counters.lost_overwritten = lost_ - lost_damaged_ - lost_no_memory_;
  counters.lost_damaged = lost_damaged_;
  counters.lost_no_memory = lost_no_memory_;
  counters.suppressed = head_untrusted.suppressed;
  counters.lost_at_death = lost_at_death_;
  counters.overwrote_unread = head_untrusted.overwrote_unread;
  counters.waits = head_untrusted.waits;
  counters.wait_ns = head_untrusted.wait_ns;
  counters.bytes = bytes_;
  counters.taken = head_untrusted.taken;
  counters.graph_replays = head_untrusted.graph_replays;
  counters.passed = head_untrusted.passed;
  counters.unchanged = head_untrusted.unchanged;
  const std::int64_t last_ns = HostTime(head_untrusted.last_timestamp_ns, made_timestamp_ns_);
  last_timestamp_ns_ = clock_ == nullptr ? std::max(last_timestamp_ns_, last_ns) : last_ns;
  reached_ = head_untrusted.reached;
  reached_ns_ = HostTime(head_untrusted.reached_ns);
  ShowCounters(counters, ring_.retired());
  if (ControlIsOver(head_untrusted)) ApplyControl(layout::Ended(control_));
}

// An op log has many rows, and most looks find nothing new.
void SlotConsumer::ShowCounters(pipeline::Counters counters, bool retired) {
  if (shows_counters_ && AreEqual(counters, counters_) && retired == shows_retired_ &&
      last_timestamp_ns_ == shows_timestamp_ns_ && reached_ == shows_reached_) {
    return;
  }
  shows_counters_ = true;
  shows_retired_ = retired;
  shows_timestamp_ns_ = last_timestamp_ns_;
  shows_reached_ = reached_;
  counters_ = counters;
  if (HoldsOpLog()) counters.bytes /= shown_.size();
  for (const ShownSlot& shown : shown_) {
    destination_.registry->SetSlot(shown.slot, counters, last_timestamp_ns_, retired,
                                   ReachedBy(*shown.slot));
  }
}

// The launches of a page tell of the replay after the one that its leaf finished last; anything
// else is about a replay that is over.
pipeline::Reached SlotConsumer::ReachedBy(const pipeline::SlotIdentity& row) const {
  if (!HoldsOpLog()) return {};
  const std::uint32_t launch = layout::ReachedLaunch(reached_);
  const bool is_under_way = layout::ReachedReplay(reached_) == counters_.replays + 1;
  if (!is_under_way || row.launch == 0 || row.launch > launch) return {counters_.replays, 0};
  return {counters_.replays + 1, row.launch == launch ? reached_ns_ : 0};
}

layout::Lossless SlotConsumer::LosslessWanted() const {
  const auto all = [this](layout::Lossless lossless) {
    return std::ranges::all_of(
        shown_, [lossless](const ShownSlot& shown) { return shown.lossless == lossless; });
  };
  const bool any_on = std::ranges::any_of(
      shown_, [](const ShownSlot& shown) { return shown.lossless == layout::Lossless::kOn; });
  return any_on                        ? layout::Lossless::kOn
         : all(layout::Lossless::kOff) ? layout::Lossless::kOff
                                       : layout::Lossless::kAsRegistered;
}

void SlotConsumer::SetControl(const pipeline::ControlChange& change) {
  if (!ring_.valid()) return;
  layout::SlotControl control = change.control;
  control.lossless = control_.lossless;
  if (change.lossless) {
    shown_[NumberOf(change.slot)].lossless = *change.lossless;
    device_.SetEvery(change.wants_values);
    control = control_;
    control.lossless = LosslessWanted();
    if (control.lossless == control_.lossless) return;
  } else if (change.from_next) {
    // A kernel has decided about the next replay already, when the last one ended. In a body it has
    // not, but a replay may be under way.
    const bool decided =
        slot_->registration.lane == static_cast<std::uint8_t>(layout::Lane::kDirect) &&
        !slot_->IsInBody();
    control.from = NewestReplay(ring_.head()) + (decided ? 2 : 1);
    control.until += control.from - 1;
  }
  ApplyControl(control);
}

void SlotConsumer::ApplyControl(const layout::SlotControl& control) {
  control_ = control;
  ring_.SetControl(control);
  for (const ShownSlot& shown : shown_) destination_.registry->SetControl(shown.slot, control);
}

// Whether a control has ended. The producer notices the end by itself; this is for clients that ask
// what is set. Entries that were written under the trigger are read first.
bool SlotConsumer::ControlIsOver(const layout::SlotHead& head) const {
  if (control_.mode == layout::ControlMode::kAsRegistered || head.accepted > consumed_)
    return false;
  // In a body more iterations of that replay may come.
  const std::uint64_t last = control_.until + (slot_->IsInBody() ? 1 : 0);
  if (control_.until != 0 && NewestReplay(head) >= last) return true;
  return control_.expires_ns != 0 && RealtimeNs() > control_.expires_ns;
}

void SlotConsumer::Finish() {
  if (!ring_.valid()) return;
  const std::uint64_t accepted = ring_.accepted();
  if (accepted > consumed_) Lose(accepted + 1);
  lost_at_death_ = ring_.HasUncommitted() ? 1 : 0;
  // A kernel counts a replay when it commits it, the other lanes when it begins.
  const bool counted = slot_->registration.lane != static_cast<std::uint8_t>(layout::Lane::kDirect);
  const std::uint64_t committed = ring_.replay() - (counted ? lost_at_death_ : 0);
  ReportLoss(committed, 0, LossCause::kOverwritten);
  if (lost_at_death_ != 0) {
    TellLoss({slot_, LossCause::kAtDeath, 1, consumed_ + 1, committed + 1, 0});
  }
  destination_.sink->Flush();
  PublishCredit(0);
  TellClosed(ring_.replay());
  Refresh();
}

void SlotConsumer::GiveUp() {
  ReportLoss(counters_.replays, 0, LossCause::kOverwritten);
  if (counters_.produced > consumed_) {
    TellLoss({slot_, LossCause::kReleased, counters_.produced - consumed_, counters_.produced,
              counters_.replays, 0});
  }
  TellClosed(counters_.replays);
  pipeline::Counters counters = counters_;
  counters.produced = counters.consumed + counters.lost_overwritten + counters.lost_damaged +
                      counters.lost_no_memory;
  ShowCounters(counters, /*retired=*/true);
}

Result<std::vector<std::byte>> SlotConsumer::ReadExpected() {
  std::string reason;
  std::optional<std::vector<std::byte>> expected;
  try {
    const MayRunOutOfMemory large;
    expected = view_->ReadExpected(slot_->registration, &reason);
  } catch (const std::bad_alloc&) {
    reason = "the daemon has no memory for it";
  }
  if (SigbusGuard::Hit()) return Error{"its shared memory was cut off"};
  if (!expected) return Error{reason};
  return *std::move(expected);
}

Result<void> SlotConsumer::CanCompare() {
  if (expected_ && !expected_->ok()) return expected_->error();
  return {};
}

// An earlier daemon had it. Its memory is gone, but the ring may have the entry still.
void SlotConsumer::FindReference() {
  if (consumed_ == 0) return;
  ring::Entry entry;
  bool has_values = false;
  try {
    const MayRunOutOfMemory large;
    constexpr std::uint32_t kWithoutValues = layout::kEntryIsStats | layout::kEntryDropValues;
    has_values = ring_.Read(1, &entry) == ReadStatus::kOk && (entry.flags & kWithoutValues) == 0;
  } catch (const std::bad_alloc&) {
  }
  if (has_values && !SigbusGuard::Hit()) {
    expected_ = std::move(entry.payload);
  } else {
    expected_ = Error{
        "the daemon that had its first snapshot, with which the others are compared, "
        "is gone. Capture the graph again"};
  }
}

void SlotConsumer::TakeReference() {
  if (!ComparesFirst() || expected_) return;
  const pipeline::PayloadPtr& payload = shown_.front().made.payload;
  if (entry_.ordinal != 1) {
    expected_ = Error{
        "its first snapshot, with which the others are compared, was lost before the "
        "daemon could read it. Give the probe more room with "
        "TensorRecord(capacity=...)"};
  } else if (payload == nullptr) {
    expected_ = Error{
        "its first snapshot, with which the others are compared, came without its "
        "values: the probe was turned down to statistics (cgdebug-cli set)"};
  } else {
    expected_ = *payload;
  }
}

void SlotConsumer::OpenOther() {
  const layout::SlotFacts& registration = slot_->registration;
  std::string ignored;
  if (registration.reference_index >= view_->slot_count()) return;
  other_ = view_->OpenSlot(registration.reference_index, &ignored);
  if (other_ && other_->registration().order != registration.reference_order) other_.reset();
}

// The GPU has compared the values with those of the other probe, which may not have left it.
Result<numerics::CompareResult> SlotConsumer::ByDevice() const {
  const layout::SlotFacts& registration = slot_->registration;
  numerics::CompareResult result;
  result.ok = (entry_.flags & layout::kEntryDiffers) == 0;
  if (result.ok) return result;
  const std::optional<layout::SlotFailure> failure = ring_.failure();
  if (!failure || failure->replay != entry_.replay) {
    result.message = "The tensor differs from that of the other probe, as in an earlier replay";
    return result;
  }
  const numerics::CompareOptions options = {
      .rtol = registration.compare_rtol,
      .atol = registration.compare_atol,
      .bitwise = (registration.flags & layout::kCompareBitwise) != 0};
  const Result<std::string> text =
      numerics::FailureText(slot_->dtype, slot_->shape, options, *failure);
  if (!text.ok()) return text.error();
  result.mismatched = failure->mismatched;
  result.message = *text;
  return result;
}

pipeline::ComparisonPtr SlotConsumer::CompareWithOther(std::span<const std::byte> values) const {
  using Compared = Result<numerics::CompareResult>;
  if ((slot_->registration.flags & layout::kSlotComparesOnDevice) != 0) {
    return std::make_shared<const Compared>(ByDevice());
  }
  const bool eager = slot_->registration.graph_id == 0;
  ring::Entry entry;
  const std::uint64_t ordinal = !other_ ? 0
                                : eager ? entry_.reference
                                        : other_->FindReplay(entry_.replay, std::nullopt);
  if (ordinal == 0 || other_->Read(ordinal, &entry) != ReadStatus::kOk ||
      entry.payload.size() != values.size()) {
    return std::make_shared<const Compared>(
        Error{"the probe that it is compared with has no values of replay " +
              std::to_string(entry_.replay) +
              ": it did not keep them (every, cgdebug-cli set), is closed, or overwrote them"});
  }
  return pipeline::CompareWithExpected(*slot_, values, entry.payload);
}

pipeline::ComparisonPtr SlotConsumer::Compare() {
  const layout::SlotFacts& registration = slot_->registration;
  TakeReference();
  if (!expected_ && !ComparesProbe()) return nullptr;
  if (ComparesFirst() && entry_.ordinal == 1) return nullptr;
  const auto& [snapshot, payload] = shown_.front().made;
  if (payload == nullptr) return nullptr;
  if (!ComparesProbe() && !expected_->ok()) {
    if (!ComparesFirst()) return nullptr;
    return std::make_shared<const Result<numerics::CompareResult>>(expected_->error());
  }
  if (!snapshot->forced && !layout::Wants(registration.compare_every, snapshot->replay)) {
    return nullptr;
  }
  if (ComparesProbe()) return CompareWithOther(*payload);
  return pipeline::CompareWithExpected(*slot_, *payload, **expected_);
}

void SlotConsumer::AddPrinted(std::uint64_t lines, std::uint64_t on_terminal) {
  view_->AddPrinted(lines, on_terminal);
}

// --- what it finds: the first NaN, the first Inf, the first failed comparison ------------------

void SlotConsumer::AddFinding(const pipeline::SlotPtr& slot, pipeline::Finding::Kind kind,
                              const ring::FirstNonfinite& first) {
  if (first.replay == 0) return;
  findings_.push_back({.slot = slot,
                       .kind = kind,
                       .replay = first.replay,
                       .serial = first.serial,
                       .step = first.step,
                       .count = first.count});
}

void SlotConsumer::TellFindings() {
  for (const pipeline::Finding& finding : std::exchange(findings_, {})) {
    TellJob(finding);
    destination_.sink->Found(finding);
  }
}

void SlotConsumer::TellJob(const pipeline::Finding& finding) {
  const auto kind = static_cast<layout::FindingKind>(finding.kind);
  const ring::SegmentView::Found found = {finding.serial, finding.slot->registration.order};
  if (!ring_.valid() || !view_->IsFirst(kind, found)) return;
  const pipeline::SlotPlace place = destination_.registry->PlaceOf(*finding.slot);
  const std::string text = pipeline::SentenceOf(finding, place.graph, place.qualifier);
  view_->SetFinding(kind, found, text);
  destination_.registry->SetFinding(finding.slot->session, kind, text);
}

// Replays come in order, so the first one noted stays the first.
void SlotConsumer::NoteFirsts(ShownSlot* shown, const pipeline::Snapshot& snapshot) {
  ring::FirstNonfinites& firsts = shown->firsts;
  const numerics::Stats& stats = snapshot.stats;
  const std::uint64_t inf = stats.pos_inf + stats.neg_inf;
  const bool is_new =
      (stats.nan != 0 && firsts.nan.replay == 0) || (inf != 0 && firsts.inf.replay == 0);
  if (!is_new || !ring_.valid()) return;
  const auto note = [&](std::uint64_t count, pipeline::Finding::Kind kind,
                        ring::FirstNonfinite* first) {
    if (count == 0 || first->replay != 0) return;
    *first = {snapshot.replay, snapshot.step, count, snapshot.serial};
    AddFinding(shown->slot, kind, *first);
    if (stats.has_nonfinite) findings_.back().element = stats.first_nonfinite;
    findings_.back().has_values = snapshot.has_values;
  };
  note(stats.nan, pipeline::Finding::Kind::kNan, &firsts.nan);
  note(inf, pipeline::Finding::Kind::kInf, &firsts.inf);
  if (HoldsOpLog()) {
    view_->SetFirsts(slot_->registration, NumberOf(shown->slot), firsts);
  } else {
    ring_.SetFirsts(firsts);
  }
  destination_.registry->SetFirsts(shown->slot, firsts);
}

void SlotConsumer::SetVerdict(const layout::Verdict& verdict) {
  if (ring_.valid()) ring_.SetVerdict(verdict);
  destination_.registry->SetVerdict(slot_, verdict);
  if (verdict.state != layout::VerdictState::kFail || std::exchange(mismatch_told_, true)) return;
  findings_.push_back({.slot = slot_,
                       .kind = pipeline::Finding::Kind::kMismatch,
                       .replay = verdict.first_failed_replay,
                       .text = verdict.text});
}

}  // namespace cgdebug::ingest
