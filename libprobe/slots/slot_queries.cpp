#include "libprobe/slots/slot_queries.h"

#include <algorithm>
#include <utility>

#include "libprobe/capture/memory/device_ring.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

ObservedSlot IdentityOf(const ProbeSlot& slot) {
  const layout::SlotRegistration& r = slot.registration;
  return {.slot = slot.index,
          .invocation_index = r.invocation,
          .graph_id = r.graph_id,
          .graph_label = r.graph_label,
          .dtype = static_cast<Dtype>(r.dtype),
          .shape = {r.shape, r.shape + r.dims},
          .device_type = static_cast<DeviceType>(r.device_type),
          .device_index = r.device_index,
          .part = r.part};
}

Record MakeRecord(const ProbeSlot& slot, ring::Entry entry) {
  Record record{IdentityOf(slot)};
  record.replay_index = entry.replay;
  record.iteration = entry.iteration;
  record.serial = entry.serial;
  record.ordinal = entry.ordinal;
  record.timestamp_ns = entry.timestamp_ns;
  record.step = entry.step;
  record.thread = slot.registration.thread;
  record.shard = slot.registration.shard;
  record.payload = std::move(entry.payload);
  return record;
}

// AppendRecords() for a slot whose values are in device memory. Skips those that were overwritten
// there.
void AppendFromDevice(const ProbeSlot& slot, std::uint64_t cleared, std::size_t last,
                      std::vector<Record>* records) {
  const ring::SlotRingReader& reader = *slot.reader;
  const std::uint64_t newest = reader.accepted();
  const std::uint64_t oldest =
      std::max({reader.oldest(newest), cleared + 1,
                layout::OldestOnDevice(newest, slot.registration.device_capacity)});
  std::vector<ring::Entry> entries;
  std::vector<std::uint64_t> ordinals;
  for (std::uint64_t n = newest; n >= oldest && entries.size() < last; --n) {
    ring::Entry entry;
    const ring::ReadStatus status = reader.Read(n, &entry);
    if (status == ring::ReadStatus::kOverwritten) break;
    if (status != ring::ReadStatus::kOk) continue;  // damaged, or not visible yet
    if (!layout::Wants(slot.registration.record_every, entry.replay)) continue;
    ordinals.push_back(n);
    entries.push_back(std::move(entry));
  }
  std::vector<std::vector<std::byte>> values = capture::ReadDeviceRing(slot, ordinals);
  for (std::size_t i = entries.size(); i-- > 0;) {
    if (values[i].empty()) continue;
    entries[i].payload = std::move(values[i]);
    records->push_back(MakeRecord(slot, std::move(entries[i])));
  }
}

}  // namespace

SlotStatus StatusOf(const ProbeSlot& slot) {
  const layout::SlotRegistration& r = slot.registration;
  const layout::SlotHead head = slot.reader->head();
  const ring::Credit credit = slot.reader->credit();
  SlotStatus status{IdentityOf(slot)};
  status.site = r.site;
  status.lane = static_cast<layout::Lane>(r.lane);
  status.lane_reason = static_cast<layout::LaneReason>(r.lane_reason);
  status.policy = static_cast<layout::Policy>(r.policy);
  status.capacity = r.capacity;
  status.payload_bytes = r.payload_bytes;
  status.device_bytes = r.device_bytes;
  status.device_capacity = r.device_capacity;
  status.replays = head.replay;
  status.in_body = (r.flags & layout::kSlotInBody) != 0;
  status.taken = head.taken;
  status.graph_replays = head.graph_replays;
  status.accepted = head.accepted;
  status.consumed = credit.consumed;
  status.lost = credit.lost;
  status.overwrote_unread = head.overwrote_unread;
  status.waits = head.waits;
  status.wait_ns = head.wait_ns;
  status.suppressed = head.suppressed;
  status.skips_unchanged = (r.flags & layout::kSlotSkipsUnchanged) != 0;
  status.unchanged = head.unchanged;
  status.unstaged = (r.flags & layout::kSlotUnstaged) != 0;
  status.retired =
      slot.reader->retired() || (slot.counted != nullptr && slot.counted->owner_is_gone());
  status.compares = (r.actions & layout::kActionCompare) != 0;
  status.compares_probe = (r.flags & layout::kCompareProbe) != 0;
  status.compares_first = (r.flags & layout::kCompareFirst) != 0;
  status.compares_on_device = (r.flags & layout::kSlotComparesOnDevice) != 0;
  status.rtol = r.compare_rtol;
  status.atol = r.compare_atol;
  status.bitwise = (r.flags & layout::kCompareBitwise) != 0;
  status.verdict = slot.reader->verdict();
  if (status.compares_on_device) {
    status.failure = slot.reader->failure();
    status.verdict = ByDevice(status.verdict, head, status.failure ? status.failure->replay : 0);
  }
  return status;
}

void Add(const SlotStatus& from, SlotStatus* to) {
  to->replays += from.replays;
  to->accepted += from.accepted;
  to->consumed += from.consumed;
  to->lost += from.lost;
  to->overwrote_unread += from.overwrote_unread;
  to->waits += from.waits;
  to->wait_ns += from.wait_ns;
  to->suppressed += from.suppressed;
  to->unchanged += from.unchanged;
  to->verdict.compared += from.verdict.compared;
  to->verdict.mismatched += from.verdict.mismatched;
  to->verdict.lost += from.verdict.lost;
}

void AppendRecords(const ProbeSlot& slot, std::uint64_t cleared, std::size_t last,
                   std::vector<Record>* records) {
  if (capture::IsOnDevice(slot)) return AppendFromDevice(slot, cleared, last, records);
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

std::uint64_t Unread(const ProbeSlot& slot) {
  if (!slot.reader) return 0;
  const std::uint64_t consumed = slot.reader->consumed();
  const std::uint64_t accepted = slot.reader->accepted();
  return accepted - std::min(accepted, consumed);
}

bool NeedsDaemon(const ProbeSlot& slot) {
  if ((slot.registration.actions & ~layout::kActionRecord) != 0) return true;
  const auto lossless = slot.reader ? slot.reader->control().lossless : layout::Lossless();
  return lossless == layout::Lossless::kAsRegistered
             ? (slot.registration.flags & layout::kSlotLossless) != 0
             : lossless == layout::Lossless::kOn;
}

}  // namespace cgdebug
