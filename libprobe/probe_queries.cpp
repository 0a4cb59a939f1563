// The table's reading half: records, status, waiting for the daemon, the end of the process.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <thread>
#include <utility>

#include "libprobe/probe_table.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/shared_mark.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;
using Clock = std::chrono::steady_clock;

// If no daemon came in this time, none will: it was started before the first replay.
constexpr auto kDaemonGrace = std::chrono::seconds(3);
constexpr auto kPoll = std::chrono::microseconds(200);

std::vector<std::int64_t> ShapeOf(const layout::SlotRegistration& r) {
  return {r.shape, r.shape + r.dims};
}

Record MakeRecord(const ProbeSlot& slot, ring::Entry entry) {
  const layout::SlotRegistration& r = slot.registration;
  Record record;
  record.replay_index = entry.replay;
  record.invocation_index = r.invocation;
  record.graph_id = r.graph_id;
  record.graph_label = r.graph_label;
  record.serial = entry.serial;
  record.slot = slot.index;
  record.ordinal = entry.ordinal;
  record.dtype = static_cast<Dtype>(r.dtype);
  record.shape = ShapeOf(r);
  record.device_type = static_cast<DeviceType>(r.device_type);
  record.device_index = r.device_index;
  record.timestamp_ns = entry.timestamp_ns;
  record.step = entry.step;
  record.shard = r.shard;
  record.payload = std::move(entry.payload);
  return record;
}

}  // namespace

SlotStatus StatusOf(const ProbeSlot& slot) {
  const layout::SlotRegistration& r = slot.registration;
  const layout::SlotHead head = slot.reader->head();
  const ring::Credit credit = slot.reader->credit();
  SlotStatus status;
  status.slot = slot.index;
  status.site = r.site;
  status.graph_id = r.graph_id;
  status.graph_label = r.graph_label;
  status.invocation = r.invocation;
  status.dtype = static_cast<Dtype>(r.dtype);
  status.shape = ShapeOf(r);
  status.device_type = static_cast<DeviceType>(r.device_type);
  status.device_index = r.device_index;
  status.lane = static_cast<layout::Lane>(r.lane);
  status.lane_reason = static_cast<layout::LaneReason>(r.lane_reason);
  status.policy = static_cast<layout::Policy>(r.policy);
  status.capacity = r.capacity;
  status.payload_bytes = r.payload_bytes;
  status.replays = head.replay;
  status.accepted = head.accepted;
  status.consumed = credit.consumed;
  status.lost = credit.lost;
  status.overwrote_unread = head.overwrote_unread;
  status.waits = head.waits;
  status.wait_ns = head.wait_ns;
  status.suppressed = head.suppressed;
  status.retired = slot.reader->retired();
  status.compares = (r.actions & layout::kActionCompare) != 0;
  const ring::Verdict verdict = slot.reader->verdict();
  const auto state = verdict.torn ? layout::VerdictState::kError : verdict.state;
  status.verdict = {
      state,       verdict.compared, verdict.mismatched, verdict.lost, verdict.first_failed_replay,
      verdict.text};
  return status;
}

namespace {

// Keeps a slot from being freed.
struct Unpin {
  void operator()(ProbeSlot* slot) const { slot->pending.fetch_sub(1, std::memory_order_release); }
};
using Pin = std::unique_ptr<ProbeSlot, Unpin>;

// Appends the newest `last` records of a slot that its TensorRecord wanted and that are newer than
// `cleared`, oldest first.
void AppendRecords(const ProbeSlot& slot, std::uint64_t cleared, std::size_t last,
                   std::vector<Record>* records) {
  const ring::SlotRingReader& reader = *slot.reader;
  const std::size_t before = records->size();
  // Newest first: what is overwritten meanwhile then leaves no hole in the middle.
  const std::uint64_t newest = reader.accepted();
  const std::uint64_t oldest = std::max(reader.oldest(newest), cleared + 1);
  for (std::uint64_t n = newest; n >= oldest && records->size() - before < last; --n) {
    ring::Entry entry;
    const ring::ReadStatus status = reader.Read(n, &entry);
    if (status == ring::ReadStatus::kOverwritten) break;
    if (status != ring::ReadStatus::kOk) continue;  // damaged, or not visible yet
    const bool has_values = (entry.flags & (layout::kEntryIsStats | layout::kEntryDropValues)) == 0;
    if (!has_values || !layout::Wants(slot.registration.record_every, entry.replay)) continue;
    records->push_back(MakeRecord(slot, std::move(entry)));
  }
  std::reverse(records->begin() + static_cast<std::ptrdiff_t>(before), records->end());
}

}  // namespace

std::string DaemonSetting() {
  const char* setting = std::getenv("CGDEBUG");
  return setting == nullptr ? "" : setting;
}

bool DaemonForbidden() { return DaemonSetting() == "0"; }

bool NeedsDaemon(const ProbeSlot& slot) {
  if ((slot.registration.actions & ~layout::kActionRecord) != 0) return true;
  const auto lossless = slot.reader ? slot.reader->control().lossless : layout::Lossless();
  return lossless == layout::Lossless::kAsRegistered
             ? (slot.registration.flags & layout::kSlotLossless) != 0
             : lossless == layout::Lossless::kOn;
}

std::vector<Record> ProbeTable::Records(ProbeState& probe, int last) {
  std::vector<std::pair<Pin, std::uint64_t>> slots;  // and where each was cleared
  {
    const std::lock_guard lock(mutex_);
    AdoptInThisProcess(probe);
    if (probe.closed) throw ProbeError(ErrorKind::kClosed, "probe '" + probe.name + "' is closed");
    slots.reserve(probe.slots.size());
    for (ProbeSlot* slot : probe.slots) {
      slot->pending.fetch_add(1, std::memory_order_relaxed);
      slots.emplace_back(Pin(slot), slot->cleared_ordinal);
    }
  }
  const std::size_t limit =
      last < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(last);
  std::vector<Record> records;  // by slot, so that earlier calls of a replay come first
  for (const auto& [slot, cleared] : slots) AppendRecords(*slot, cleared, limit, &records);
  std::stable_sort(records.begin(), records.end(),
                   [](const Record& a, const Record& b) { return a.serial < b.serial; });
  if (records.size() > limit) records.erase(records.begin(), records.end() - last);
  return records;
}

void ProbeTable::ClearRecords(ProbeState& probe, std::uint32_t index, std::uint64_t ordinal) {
  const std::lock_guard lock(mutex_);
  AdoptInThisProcess(probe);
  for (ProbeSlot* slot : probe.slots) {
    if (slot->index != index) continue;
    slot->cleared_ordinal =
        std::max(slot->cleared_ordinal, std::min(ordinal, slot->reader->accepted()));
  }
}

void ProbeTable::ClearAllRecords(ProbeState& probe) {
  const std::lock_guard lock(mutex_);
  AdoptInThisProcess(probe);
  for (ProbeSlot* slot : probe.slots) slot->cleared_ordinal = slot->reader->accepted();
}

ProbeStatus ProbeTable::Status(ProbeState& probe) {
  const std::lock_guard lock(mutex_);
  AdoptInThisProcess(probe);
  Sweep(/*force=*/false);
  ProbeStatus status;
  status.closed = probe.closed;
  status.last_error = probe.last_error;
  status.lane_note = probe.lane_note;
  status.daemon_alive = segment_ != nullptr && segment_->gate()->ReaderAlive();
  for (const ProbeSlot* slot : probe.slots) status.slots.push_back(StatusOf(*slot));
  status.slots.insert(status.slots.end(), probe.evicted.begin(), probe.evicted.end());
  return status;
}

bool ProbeTable::DaemonAlive() {
  const std::lock_guard lock(mutex_);
  return segment_ != nullptr && segment_->gate()->ReaderAlive();
}

void ProbeTable::AwaitDaemon(std::chrono::nanoseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (Clock::now() < deadline) {
    {
      const std::lock_guard lock(mutex_);
      try {
        if (Segment().gate()->ReaderAlive()) return;
      } catch (const ring::SharedMemoryError& error) {
        throw ProbeError(error.no_space() ? ErrorKind::kNoSpace : ErrorKind::kSystem, error.what());
      }
    }
    std::this_thread::sleep_for(kPoll);
  }
}

// `probe` nullptr means every probe, closed ones included.
bool ProbeTable::AllDrained(const ProbeState* probe) {
  for (const auto& slot : slots_) {
    if (!slot->reader || !NeedsDaemon(*slot)) continue;
    if (probe != nullptr && slot->probe_id != probe->id) continue;
    if (slot->reader->consumed() < slot->reader->accepted()) return false;
  }
  return true;
}

bool ProbeTable::WaitConsumed(ProbeState* probe, std::chrono::nanoseconds timeout) {
  const auto start = Clock::now();
  auto last_alive = start;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (segment_ == nullptr || AllDrained(probe)) return true;
      const auto now = Clock::now();
      if (segment_->gate()->ReaderAlive()) last_alive = now;
      if (now - start >= timeout || now - last_alive >= kDaemonGrace) return false;
      if (DaemonForbidden() && last_alive != now) return false;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void ProbeTable::SetStep(std::int64_t step) {
  step_.store(step);
  layout::ProducerLine* producer = producer_.load();
  if (producer != nullptr) ring::StoreRelaxed(producer->step, step);
}

std::optional<SessionInfo> ProbeTable::Session() {
  const std::lock_guard lock(mutex_);
  if (segment_ == nullptr) return std::nullopt;
  SessionInfo info;
  info.name = segment_->name();
  info.shm_bytes = segment_->shm_bytes();
  info.released_unread = ring::LoadRelaxed(segment_->producer()->released_unread);
  info.slots = static_cast<std::uint32_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const auto& slot) { return slot->reader.has_value(); }));
  return info;
}

std::string ProbeTable::Finish(std::chrono::nanoseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || segment_ == nullptr) return {};
    finished_ = true;
  }
  const bool drained = WaitConsumed(nullptr, timeout);
  const std::lock_guard lock(mutex_);
  const bool daemon = segment_->gate()->ReaderAlive();
  // A daemon that runs may not have found this segment yet. Where none runs, one may still come for
  // what was to be printed or compared; nobody comes for the rest.
  const bool may_be_read =
      daemon || (!DaemonForbidden() && (!drained || ring::IsMarked(ring::MarkKind::kReader)));
  segment_->Close(/*unlink=*/!may_be_read);
  const std::string key = segment_->name().substr(segment_->name().rfind('-') + 1, 8);
  if (!drained && !DaemonForbidden()) {
    return "cgdebug: the daemon has not printed or compared everything this job wrote. It stays in "
           "shared memory; type: cgdebug-cli tail -s " +
           key;
  }
  const layout::ConsumerLine& consumer = *segment_->consumer();
  const std::uint64_t printed = ring::LoadRelaxed(consumer.printed_lines);
  if (printed == 0) return {};
  const std::uint64_t shown = std::min(printed, ring::LoadRelaxed(consumer.terminal_lines));
  return "cgdebug: " + std::to_string(printed) + (printed == 1 ? " line" : " lines") +
         " printed, " + std::to_string(shown) + " of them here. All of them: cgdebug-cli tail -s " +
         key;
}

}  // namespace cgdebug
