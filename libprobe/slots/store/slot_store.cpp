#include "libprobe/slots/store/slot_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/ring/segment/reclaim.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/slots/slot_queries.h"
#include "libprobe/slots/store/retired_slots.h"
#include "libprobe/slots/tensor_part.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

constexpr std::chrono::milliseconds kRoomPatience{500};

// What eager calls may take of /dev/shm before shapes that their probes see no more give way.
constexpr double kEagerPart = 1.0 / 4;
// The newest shape of a probe gives way to other eager calls if it was not called for so long.
constexpr std::chrono::seconds kIdle{10};

template <typename T>
void MakeRoomForOne(std::vector<T>& list) {
  if (list.size() == list.capacity()) list.reserve(2 * list.size() + 1);
}

// Keeps what a comparison found, or that none was made, when its slot is freed.
void KeepVerdict(const ProbeSlot& slot, const ProbeRegistry& probes) {
  if (!slot.evicted || (slot.registration.actions & layout::kActionCompare) == 0) return;
  const auto probe = probes.Find(slot.probe_id);
  if (probe == nullptr) return;
  SlotStatus status = StatusOf(slot);
  status.lost += status.accepted - std::min(status.accepted, status.consumed);
  status.consumed = status.accepted;
  const auto same = std::find_if(
      probe->evicted.begin(), probe->evicted.end(),
      [&](const SlotStatus& other) { return other.verdict.state == status.verdict.state; });
  if (same == probe->evicted.end()) {
    probe->evicted.push_back(std::move(status));
  } else {
    Add(status, &*same);
  }
}

}  // namespace

// --- memory ------------------------------------------------------------------------------------

// A block without data if there is no room.
ring::Block SlotStore::TryAllocate(std::uint64_t bytes, std::uint64_t header_bytes) {
  try {
    return segment_->Get().Allocate(bytes, header_bytes);
  } catch (const ring::SharedMemoryError& error) {
    if (!error.no_space()) throw;
    return {};
  }
}

ring::Block SlotStore::Allocate(const std::string& probe, std::uint64_t bytes,
                                std::uint64_t header_bytes, Need need) {
  try {
    if (const std::string* why_not = missing_room_.WhyNot(bytes)) {
      throw ProbeError(ErrorKind::kNoSpace, "probe '" + probe + "': " + *why_not);
    }
    ring::Block block = TryAllocate(bytes, header_bytes);
    const auto again = [&] {
      if (block.data == nullptr) block = TryAllocate(bytes, header_bytes);
      return block.data != nullptr;
    };
    if (block.data != nullptr) return block;
    FreeLeaving(/*all=*/true, /*force=*/false);
    if (again()) return block;
    while (GiveWay(bytes, need == Need::kEager ? Give::kUnused : Give::kAny)) {
      if (again()) return block;
    }
    if (need == Need::kEager) {
      FreeLeaving(/*all=*/true, /*force=*/true);  // what closed probes left
    } else {
      Sweep(/*force=*/true);  // and what is kept of graphs that are gone
    }
    if (again()) return block;
    missing_room_.Want(bytes);
    if (need == Need::kWait) {
      if (const auto room = RoomToAskFor()) AskForRoom(segment_->writer(), *room);
    }
    return segment_->Get().Allocate(bytes, header_bytes);
  } catch (const ring::SharedMemoryError& error) {
    if (error.no_space()) missing_room_.Refused(bytes, error.what());
    throw ProbeError(error.no_space() ? ErrorKind::kNoSpace : ErrorKind::kSystem,
                     "probe '" + probe + "': " + error.what());
  }
}

// Removes what dead jobs left, oldest first: first what no daemon reads, then what the daemon
// keeps.
void SlotStore::AskForRoom(ring::SegmentWriter* segment, std::uint64_t bytes) {
  const std::string own = segment == nullptr ? "" : segment->name();
  ring::EvictDeadSegments(bytes, [&own](const std::string& name) { return name == own; });
  if (segment == nullptr || ring::GetShmSpace().free_bytes >= static_cast<double>(bytes)) return;
  segment->AskForRoom(bytes, kRoomPatience);
}

std::shared_ptr<ring::Block> SlotStore::Share(const std::string& probe,
                                              std::span<const std::byte> bytes) {
  const ring::Block block = Allocate(probe, bytes.size(), 0);
  if (!bytes.empty()) std::memcpy(block.data, bytes.data(), bytes.size());
  ring::SegmentWriter* segment = segment_->writer();
  return std::shared_ptr<ring::Block>(new ring::Block(block), [segment](ring::Block* gone) {
    segment->Free(*gone);
    delete gone;
  });
}

std::shared_ptr<ring::Block> SlotStore::ExpectedBlock(ProbeState& probe, std::size_t index,
                                                      const TensorRef& tensor) {
  const ExpectedTensor& expected = probe.options.compare->expected[index];
  const bool takes_part = probe.part && expected.shape == tensor.full_shape;
  std::shared_ptr<ring::Block>& shared = probe.expected[{index, takes_part}];
  if (shared == nullptr) {
    shared = Share(probe.name,
                   takes_part ? BytesOfPart(probe.name, *probe.part, expected) : expected.bytes);
  }
  return shared;
}

// --- slots that come ---------------------------------------------------------------------------

void SlotStore::Reserve(ProbeState& probe, ProbeSlot& slot, Need need) {
  ring::SegmentWriter& segment = *segment_->writer();
  try {
    if (segment.directory_full()) FreeLeaving(/*all=*/true, /*force=*/false);
    if (segment.directory_full()) {
      (void)GiveWay(1, need == Need::kEager ? Give::kUnused : Give::kAny);
    }
    if (segment.directory_full()) {  // nobody else's records
      EvictOldRetired(/*all=*/true, &probe);
      FreeLeaving(/*all=*/false, /*force=*/false);
    }
    slot.index = segment.Reserve();
    slot.has_index = true;
  } catch (const ring::SharedMemoryError& error) {
    throw ProbeError(ErrorKind::kNoSpace, "probe '" + probe.name + "': " + error.what());
  }
}

ProbeSlot* SlotStore::Publish(ProbeState& probe, std::unique_ptr<ProbeSlot>& slot) {
  SlotList node;  // now: nothing may throw once it is published
  node.emplace_back();
  MakeRoomForOne(probe.slots);
  try {
    segment_->writer()->Publish(slot->index, slot->block);
    slot->reader = segment_->writer()->OpenSlot(slot->index, slot->block);
  } catch (const ring::SharedMemoryError& error) {
    throw ProbeError(ErrorKind::kSystem, "probe '" + probe.name + "': " + error.what());
  }
  ++published_;
  segment_->writer()->ShowDeviceBytes(capture::DeviceBytes());
  if (capture::IsOnDevice(*slot)) {
    on_device_bytes_[slot->buffers.device] += slot->registration.device_bytes;
  }
  const layout::SlotFacts& facts = slot->registration;
  const bool holds_rows = (facts.flags & layout::kSlotHoldsOpLog) != 0;
  not_seen_->NoteSeen(probe.name, facts.order + (holds_rows ? facts.shape[0] - 1 : 0));
  probe.slots.push_back(slot.get());
  node.front() = std::move(slot);
  node.front()->self = node.begin();
  slots_.splice(slots_.end(), node);
  return probe.slots.back();
}

void SlotStore::Discard(std::unique_ptr<ProbeSlot> slot) {
  slots_.push_back(std::move(slot));
  ProbeSlot& kept = *slots_.back();
  kept.self = std::prev(slots_.end());
  LetGo(kept);
  if (kept.life.unreachable()) FreeLeaving(/*all=*/false, /*force=*/false);
}

// --- slots that go -----------------------------------------------------------------------------

// Disarms a slot that its probe no longer wants; it is freed when nothing can reach it.
void SlotStore::LetGo(ProbeSlot& slot) {
  slot.life.LetGo();
  if (slot.block.data != nullptr) {  // where the kernels look
    auto* head = reinterpret_cast<layout::SlotHead*>(slot.block.data + layout::kSlotHeadOffset);
    ring::StoreRelaxed(head->disarmed, std::uint64_t{1});
  }
  Retire(slot);
  if (slot.in_use_order) eager_.Remove(slot);
  leaving_.Add(slot);
}

void SlotStore::LetGoOfAll(ProbeState& probe) {
  for (ProbeSlot* slot : probe.slots) LetGo(*slot);
  probe.slots.clear();
  probe.newest_eager = nullptr;
  ++releases_;
  missing_room_.Freed();
  for (const auto& slot : probe.prepared) Free(*slot);
  probe.prepared.clear();
  probe.expected.clear();
  Sweep(/*force=*/false);
}

void SlotStore::Evict(ProbeState& probe, ProbeSlot& slot) {
  std::erase(probe.slots, &slot);
  if (probe.newest_eager == &slot) probe.newest_eager = nullptr;
  slot.evicted = true;
  LetGo(slot);
}

void SlotStore::Touch(ProbeState& probe, ProbeSlot& slot) {
  slot.last_used = std::chrono::steady_clock::now();
  slot.was_used_again = slot.used_at != 0;
  slot.used_at = ++probe.eager_uses;
  if ((slot.registration.flags & layout::kSlotHoldsOpLog) != 0) return;
  probe.newest_eager = &slot;
  eager_.Use(slot);
}

void SlotStore::EvictOldEager(ProbeState& probe, std::uint64_t bytes) {
  if (const std::vector<ProbeSlot*> surplus = SurplusEagerSlots(probe); !surplus.empty()) {
    for (ProbeSlot* slot : surplus) Evict(probe, *slot);
    FreeLeaving(/*all=*/false, /*force=*/false);
  }
  const double most = kEagerPart * ring::GetShmSpace().total_bytes;
  const double over = static_cast<double>(eager_.bytes() + bytes) - most;
  if (over > 0) GiveWay(static_cast<std::uint64_t>(over), Give::kOldShapes);
}

// Gives up slots of eager calls that were unused for the longest time, until they held `bytes`.
// False: there is none to give up.
bool SlotStore::GiveWay(std::uint64_t bytes, Give which) {
  const auto now = std::chrono::steady_clock::now();
  std::uint64_t given = 0;
  for (auto it = eager_.begin(); it != eager_.end() && given < bytes;) {
    ProbeSlot& slot = **it++;
    SettleEagerCalls(slot);
    if (slot.life.pinned() || !slot.reader) continue;
    const auto probe = probes_->Find(slot.probe_id);
    if (probe == nullptr) continue;
    const bool is_unused = which == Give::kUnused && now - slot.last_used >= kIdle;
    if (probe->newest_eager == &slot && which != Give::kAny && !is_unused) continue;
    given += slot.block.bytes;
    slot.gives_way = which != Give::kOldShapes;
    Evict(*probe, slot);
  }
  if (given == 0) return false;
  FreeLeaving(/*all=*/false, /*force=*/false);
  return true;
}

void SlotStore::EvictOldRetired(bool all, const ProbeState* only) {
  for (const auto& [probe, slot] : RetiredBeyondLimits(slots_, *probes_, all, only)) {
    slot->gives_way = only != nullptr;
    Evict(*probe, *slot);
  }
}

void SlotStore::Retire(ProbeSlot& slot) {
  if (slot.retired || !slot.reader) return;
  slot.retired = true;
  segment_->writer()->Retire(slot.index);
}

void SlotStore::Free(ProbeSlot& slot) {
  if (slot.reader) {
    KeepVerdict(slot, *probes_);
    AddGaps(slot, &freed_gaps_);
    freed_gaps_.lost += Unread(slot);
  }
  GiveBuffersBack(slot);
  missing_room_.Freed();
  if (slot.reader) {
    --published_;
    segment_->writer()->Release(slot.index, slot.block);
  } else {
    if (slot.has_index) segment_->writer()->Unreserve(slot.index);
    if (slot.block.data != nullptr) segment_->writer()->Free(slot.block);
  }
  slot.expected.reset();
}

void SlotStore::Remove(ProbeSlot& slot) {
  Free(slot);
  slots_.erase(slot.self);
}

void SlotStore::GiveBuffersBack(ProbeSlot& slot) {
  if (slot.reader && slot.buffers.staging != nullptr && capture::IsOnDevice(slot)) {
    on_device_bytes_[slot.buffers.device] -= slot.registration.device_bytes;
  }
  capture::FreeBuffers(slot.buffers);
  slot.buffers = {};
  slot.parts.reset();
}

// False: no graph has died since the last call.
bool SlotStore::NoteGraphsGone() {
  const std::uint64_t gone = capture::SlotLife::GraphsGone();
  if (std::exchange(graphs_gone_, gone) == gone) return false;
  ++releases_;
  missing_room_.Freed();
  ring::GraphCensusWriter* const census = segment_->census();
  for (const auto& slot : slots_) {
    if (!slot->life.graph_is_gone() || slot->graph_gone_seen) continue;
    slot->graph_gone_seen = true;
    if (census != nullptr) census->GoneById(slot->registration.graph_id);
    Retire(*slot);
    // The graph's nodes run no more, but the probe may still show what is in device memory.
    if (capture::IsOnDevice(*slot) && !slot->life.unreachable()) continue;
    GiveBuffersBack(*slot);
  }
  leaving_.LookAtAll();
  return true;
}

// Frees slots that nobody needs. Not `all`: looks only at those that were let go of since the last
// call. `force`: what is kept for readers that may come later goes too.
void SlotStore::FreeLeaving(bool all, bool force) {
  if (finished_) return;
  leaving_.Free(all, force, [this](ProbeSlot& slot) { Remove(slot); });
}

void SlotStore::Sweep(bool force, bool all) {
  // After Finish() the process ends, and what it leaves behind stays readable.
  if (segment_->writer() == nullptr || finished_) return;
  ending_.Look(slots_);
  if (NoteGraphsGone() || force) EvictOldRetired(/*all=*/force);
  FreeLeaving(all, force);
}

bool SlotStore::Finish() {
  return segment_->writer() != nullptr && !std::exchange(finished_, true);
}

ReadState SlotStore::Gaps() const {
  ReadState gaps = freed_gaps_;
  for (const auto& slot : slots_) {
    if (slot->reader) AddGaps(*slot, &gaps);
  }
  return gaps;
}

std::uint64_t SlotStore::BytesOnDevice(int device) const {
  const auto found = on_device_bytes_.find(device);
  return found == on_device_bytes_.end() ? 0 : found->second;
}

}  // namespace cgdebug
