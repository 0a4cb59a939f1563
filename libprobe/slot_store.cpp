#include "libprobe/slot_store.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "libprobe/capture/cuda_lane.h"
#include "libprobe/capture/device_ring.h"
#include "libprobe/daemon_setting.h"
#include "libprobe/process_identity.h"
#include "libprobe/registration.h"
#include "libprobe/ring/reclaim.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/shared_mark.h"
#include "libprobe/slot_queries.h"
#include "proto/layout/slot_control.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;
using capture::SlotPhase;

constexpr double kReclaimAfterSeconds = 3600;
constexpr std::size_t kMaxEagerSlots = 64;  // per probe: one per shape and stream

// What closed probes wrote is kept for a daemon that may still come, but not without limit: a job
// that makes and closes probes all the time would fill /dev/shm, which others need as well.
constexpr std::uint64_t kMaxUnreadBytes = 256ull << 20;

// The records of a graph that is gone can still be asked for. Kept are those of the newest such
// graph of each probe, and older ones within these limits, because a job may capture again and
// again.
constexpr std::size_t kMaxRetiredSlots = 64;  // per probe
constexpr std::uint64_t kMaxRetiredBytes = 256ull << 20;

constexpr std::uint64_t kRoomBeside = 1u << 20;  // for a control file and an extent's header
constexpr std::chrono::milliseconds kRoomPatience{500};

// `cgdebug-cli run -o` sets CGDEBUG_LOSSLESS for its job; a recording that waits for any job leaves
// a mark.
bool LosslessWanted() {
  if (DaemonForbidden()) return false;
  const char* setting = std::getenv("CGDEBUG_LOSSLESS");
  if (setting != nullptr && *setting != '\0') return std::strcmp(setting, "0") != 0;
  return ring::IsMarked(ring::MarkKind::kRecorder);
}

// Requires: the slot has a reader.
void AddGaps(const ProbeSlot& slot, ReadState* gaps) {
  gaps->lost += slot.reader->credit().lost;
  gaps->left_out += slot.reader->head().suppressed;
  if (!layout::MakesStatisticsOfEach(slot.registration) && slot.reader->head().accepted > 0) {
    ++gaps->unseen;
  }
  if ((slot.registration.actions & layout::kActionCompare) == 0) return;
  const layout::Verdict verdict = StatusOf(slot).verdict;
  const bool is_whole = verdict.lost == 0 && (verdict.state == layout::VerdictState::kPass ||
                                              verdict.state == layout::VerdictState::kNone);
  if (!is_whole) ++gaps->not_compared;
}

template <typename T>
void MakeRoomForOne(std::vector<T>& list) {
  if (list.size() == list.capacity()) list.reserve(2 * list.size() + 1);
}

}  // namespace

// --- memory ------------------------------------------------------------------------------------

ring::SegmentWriter& SlotStore::Segment() {
  if (segment_ == nullptr) {
    ring::ReclaimDeadSegments(kReclaimAfterSeconds);
    segment_ = std::make_unique<ring::SegmentWriter>(CurrentIdentity());
    step_->ShowIn(segment_->producer());
    not_seen_->ShowIn(segment_->not_seen());
    lossless_ = LosslessWanted();
    // Snapshots written before the daemon has come may be overwritten, and all of them were asked
    // for.
    if (lossless_) segment_->gate()->AwaitReader(std::chrono::milliseconds(WaitDeadlineMs()));
  }
  return *segment_;
}

ring::Block SlotStore::Allocate(const std::string& probe, std::uint64_t bytes,
                                std::uint64_t header_bytes) {
  try {
    try {
      return Segment().Allocate(bytes, header_bytes);
    } catch (const ring::SharedMemoryError& error) {
      if (!error.no_space()) throw;
    }
    Sweep(/*force=*/true);
    try {
      return Segment().Allocate(bytes, header_bytes);
    } catch (const ring::SharedMemoryError& error) {
      if (!error.no_space()) throw;
    }
    MakeRoom(bytes);
    return Segment().Allocate(bytes, header_bytes);
  } catch (const ring::SharedMemoryError& error) {
    throw ProbeError(error.no_space() ? ErrorKind::kNoSpace : ErrorKind::kSystem,
                     "probe '" + probe + "': " + error.what());
  }
}

std::shared_ptr<ring::Block> SlotStore::Share(const std::string& probe,
                                              std::span<const std::byte> bytes) {
  const ring::Block block = Allocate(probe, bytes.size(), 0);
  if (!bytes.empty()) std::memcpy(block.data, bytes.data(), bytes.size());
  ring::SegmentWriter* segment = segment_.get();
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

// Removes what dead jobs left, oldest first: first what no daemon reads, then what the daemon
// keeps.
void SlotStore::MakeRoom(std::uint64_t bytes) {
  bytes += kRoomBeside;
  const std::string own = segment_ == nullptr ? "" : segment_->name();
  ring::EvictDeadSegments(bytes, [&own](const std::string& name) { return name == own; });
  if (segment_ == nullptr || ring::GetShmSpace().free_bytes >= static_cast<double>(bytes)) return;
  segment_->AskForRoom(bytes, kRoomPatience);
}

// --- slots that come ---------------------------------------------------------------------------

ProbeSlot* SlotStore::Publish(ProbeState& probe, std::unique_ptr<ProbeSlot>& slot) {
  MakeRoomForOne(slots_);  // now: nothing may throw once it is published
  MakeRoomForOne(probe.slots);
  try {
    if (segment_->directory_full()) Sweep(/*force=*/true);
    slot->index = segment_->Publish(slot->block);
    slot->reader = segment_->OpenSlot(slot->index, slot->block);
  } catch (const ring::SharedMemoryError& error) {
    throw ProbeError(ErrorKind::kNoSpace, "probe '" + probe.name + "': " + error.what());
  }
  probe.slots.push_back(slot.get());
  slots_.push_back(std::move(slot));
  return probe.slots.back();
}

void SlotStore::Discard(std::unique_ptr<ProbeSlot> slot) {
  LetGo(*slot);
  if (slot->life.unreachable()) {
    Free(*slot);
  } else {
    slots_.push_back(std::move(slot));  // the half-built graph refers to it
  }
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
}

void SlotStore::LetGoOfAll(ProbeState& probe) {
  for (ProbeSlot* slot : probe.slots) LetGo(*slot);
  probe.slots.clear();
  for (const auto& slot : probe.prepared) Free(*slot);
  probe.prepared.clear();
  probe.expected.clear();
  Sweep(/*force=*/false);
}

void SlotStore::Evict(ProbeState& probe, ProbeSlot& slot) {
  std::erase(probe.slots, &slot);
  slot.evicted = true;
  LetGo(slot);
}

void SlotStore::EvictOldEager(ProbeState& probe) {
  std::size_t count = 0;
  std::vector<ProbeSlot*> idle;
  for (ProbeSlot* slot : probe.slots) {
    if (slot->life.held_by_graph()) continue;
    ++count;
    if (!slot->life.pinned()) idle.push_back(slot);
  }
  if (count < kMaxEagerSlots) return;
  std::sort(idle.begin(), idle.end(),
            [](const ProbeSlot* a, const ProbeSlot* b) { return a->last_used < b->last_used; });
  idle.resize(std::min(idle.size(), count - kMaxEagerSlots + 1));
  for (ProbeSlot* slot : idle) Evict(probe, *slot);
}

void SlotStore::EvictOldRetired(bool all) {
  struct Kept {
    std::shared_ptr<ProbeState> probe;
    std::uint64_t newest_capture = 0;
    std::size_t slots = 0;
  };
  std::unordered_map<std::uint64_t, Kept> probes;
  std::uint64_t bytes = 0;
  for (auto it = slots_.rbegin(); it != slots_.rend(); ++it) {  // newest first
    ProbeSlot& slot = **it;
    if (!slot.retired || slot.life.phase() != SlotPhase::kGraphGone) continue;
    const auto [found, is_newest] = probes.try_emplace(slot.probe_id);
    Kept& kept = found->second;
    if (is_newest) {
      kept.probe = probes_->Find(slot.probe_id);
      kept.newest_capture = slot.registration.graph_id;
    }
    if (kept.probe == nullptr) continue;  // it is being closed
    const bool fits = slot.registration.graph_id == kept.newest_capture ||
                      (kept.slots < kMaxRetiredSlots && bytes < kMaxRetiredBytes);
    if (all || !fits) {
      Evict(*kept.probe, slot);
    } else {
      ++kept.slots;
      bytes += slot.block.bytes + slot.registration.device_bytes;
    }
  }
}

// Keeps what a comparison found, or that none was made, when its slot is freed.
void SlotStore::KeepVerdict(const ProbeSlot& slot) {
  if (!slot.evicted || (slot.registration.actions & layout::kActionCompare) == 0) return;
  const auto probe = probes_->Find(slot.probe_id);
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

void SlotStore::Retire(ProbeSlot& slot) {
  if (slot.retired || !slot.reader) return;
  slot.retired = true;
  segment_->Retire(slot.index);
}

void SlotStore::Free(ProbeSlot& slot) {
  if (slot.reader) {
    KeepVerdict(slot);
    AddGaps(slot, &freed_gaps_);
    freed_gaps_.lost += Unread(slot);
  }
  capture::FreeBuffers(slot.buffers);
  slot.buffers = {};
  if (slot.reader) {
    segment_->Release(slot.index, slot.block);
  } else if (slot.block.data != nullptr) {
    segment_->Free(slot.block);
  }
  slot.expected.reset();
}

ring::GraphCensusWriter* SlotStore::Census() noexcept {
  if (census_ || census_failed_) return census();
  census_failed_ = true;
  try {
    const ring::Block block =
        Segment().Allocate(layout::kGraphTableBytes, layout::kGraphTableBytes);
    census_.emplace(block.data);
    segment_->PublishGraphs(block);
    census_failed_ = false;
  } catch (const std::exception&) {  // no room, or no segment: the probes say so themselves
  }
  return census();
}

void SlotStore::CountProbe(std::uint64_t graph_id, const std::string& label, std::uint64_t bytes) {
  ring::GraphCensusWriter* const census = Census();
  if (census == nullptr) return;
  if (!census->Has(graph_id)) census->Begin(graph_id, label, "", /*counted=*/false);
  census->AddProbe(graph_id, bytes, label);
}

// All leaves of a capture use a word in the memory of the first one. So if user objects hold some
// of them, their end must be waited for as well.
bool SlotStore::HeldByUserObject(const CountedGraph& graph) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const auto& slot) {
    return slot->registration.graph_id == graph.id() && slot->counted == nullptr &&
           slot->life.held_by_graph() && !slot->life.graph_is_gone();
  });
}

void SlotStore::EndCountedGraphs() {
  if (ending_.empty()) return;
  const auto now = CountedGraph::Clock::now();
  std::erase_if(ending_, [&](const std::shared_ptr<CountedGraph>& graph) {
    const CountedGraph::End end = graph->Look(now);
    if (end == CountedGraph::End::kUnknown) return true;  // its slots stay as they are
    if (end == CountedGraph::End::kPending || HeldByUserObject(*graph)) return false;
    for (const auto& slot : slots_) {
      if (slot->counted == graph) slot->life.GraphIsGone();
    }
    return true;
  });
}

void SlotStore::Sweep(bool force) {
  // After Finish() the process ends, and what it leaves behind stays readable.
  if (segment_ == nullptr || finished_) return;
  EndCountedGraphs();
  bool graphs_died = force;
  for (const auto& slot : slots_) {
    if (!slot->life.graph_is_gone()) continue;
    if (!slot->retired) {
      graphs_died = true;
      if (census_) census_->GoneById(slot->registration.graph_id);
    }
    Retire(*slot);
    // The graph's nodes run no more, but the probe may still show what is in device memory.
    if (capture::IsOnDevice(*slot) && !slot->life.unreachable()) continue;
    capture::FreeBuffers(slot->buffers);
    slot->buffers = {};
  }
  if (graphs_died) EvictOldRetired(/*all=*/force);
  std::uint64_t unread_bytes = 0;
  const ProbeSlot* newest_unread = nullptr;
  std::erase_if(slots_, [&](const std::unique_ptr<ProbeSlot>& slot) {
    if (!slot->life.unreachable()) return false;
    if (Unread(*slot) != 0) {
      unread_bytes += slot->block.bytes;
      newest_unread = slot.get();
      return false;
    }
    Free(*slot);
    return true;
  });
  if (newest_unread == nullptr) return;
  const bool alive = DaemonAlive();
  const bool may_come = !DaemonForbidden();
  // It may not have found this segment yet.
  const bool runs = !alive && may_come && ring::IsMarked(ring::MarkKind::kReader);
  std::erase_if(slots_, [&](const std::unique_ptr<ProbeSlot>& slot) {  // in order of creation
    const std::uint64_t unread = Unread(*slot);
    if (!slot->life.unreachable() || unread == 0) return false;
    const bool awaited = alive || runs || (may_come && NeedsDaemon(*slot));
    const bool affordable = alive || unread_bytes <= kMaxUnreadBytes || slot.get() == newest_unread;
    if (awaited && affordable && !force) return false;
    if (awaited || slot->evicted) ring::Add(segment_->producer()->released_unread, unread);
    unread_bytes -= std::min(unread_bytes, slot->block.bytes);
    Free(*slot);
    return true;
  });
}

const ProbeSlot* SlotStore::FindState(const capture::DirectState* state) const {
  if (state == nullptr) return nullptr;
  for (const auto& slot : slots_) {
    if (slot->buffers.state == state) return slot.get();
  }
  return nullptr;
}

std::vector<ProbeSlot*> SlotStore::OnDevice() const {
  std::vector<ProbeSlot*> found;
  for (const auto& slot : slots_) {
    const bool has_values = slot->reader && slot->buffers.staging != nullptr;
    if (has_values && capture::IsOnDevice(*slot)) found.push_back(slot.get());
  }
  return found;
}

bool SlotStore::Finish() { return segment_ != nullptr && !std::exchange(finished_, true); }

// --- what they tell ----------------------------------------------------------------------------

bool SlotStore::AllDrained(const ProbeState* probe) const {
  for (const auto& slot : slots_) {
    if (!slot->reader || !NeedsDaemon(*slot)) continue;
    if (probe != nullptr && slot->probe_id != probe->id) continue;
    if (Unread(*slot) != 0) return false;
  }
  return true;
}

bool SlotStore::AllRead() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const auto& slot) {
    return slot->reader.has_value() && Unread(*slot) != 0;
  });
}

ReadState SlotStore::Gaps() const {
  ReadState gaps = freed_gaps_;
  for (const auto& slot : slots_) {
    if (slot->reader) AddGaps(*slot, &gaps);
  }
  return gaps;
}

std::uint32_t SlotStore::published() const {
  return static_cast<std::uint32_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const auto& slot) { return slot->reader.has_value(); }));
}

}  // namespace cgdebug
