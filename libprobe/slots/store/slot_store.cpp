#include "libprobe/slots/store/slot_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/ring/segment/reclaim.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/slots/slot_queries.h"
#include "libprobe/slots/store/retired_slots.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

// What eager calls may take of /dev/shm before shapes that their probes see no more give way.
constexpr double kEagerPart = 1.0 / 4;

template <typename T>
void MakeRoomForOne(std::vector<T>& list) {
  if (list.size() == list.capacity()) list.reserve(2 * list.size() + 1);
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
  held_.NotePublished(*slot);
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
  for (const auto& slot : probe.prepared) held_.Free(*slot);
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

// False: there is none to give up.
bool SlotStore::GiveWay(std::uint64_t bytes, Give which) {
  const auto given = eager_.GivingWay(bytes, which, *probes_);
  for (const auto& [probe, slot] : given) {
    slot->gives_way = which != Give::kOldShapes;
    Evict(*probe, *slot);
  }
  if (!given.empty()) FreeLeaving(/*all=*/false, /*force=*/false);
  return !given.empty();
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

void SlotStore::Remove(ProbeSlot& slot) {
  held_.Free(slot);
  missing_room_.Freed();
  slots_.erase(slot.self);
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
    held_.FreeBuffers(*slot);
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
  ReadState gaps = held_.freed_gaps();
  for (const auto& slot : slots_) {
    if (slot->reader) AddGaps(*slot, &gaps);
  }
  return gaps;
}

}  // namespace cgdebug
