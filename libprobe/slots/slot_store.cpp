#include "libprobe/slots/slot_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "daemon/core/words/settings.h"
#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/ring/segment/reclaim.h"
#include "libprobe/ring/segment/shared_mark.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/slots/daemon_setting.h"
#include "libprobe/slots/process_identity.h"
#include "libprobe/slots/registration.h"
#include "libprobe/slots/slot_queries.h"
#include "proto/layout/slot_control.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;
using capture::SlotPhase;

constexpr double kReclaimAfterSeconds = 3600;
constexpr std::size_t kMaxEagerSlots = 64;  // per probe: one per shape and stream
// A shape that came again is expected to come again, for so many uses of its probe.
constexpr std::uint64_t kExpectedFor = 8 * kMaxEagerSlots;

// What closed probes wrote is kept for a daemon that may still come, but not without limit: a job
// that makes and closes probes all the time would fill /dev/shm, which others need as well.
constexpr std::uint64_t kMaxUnreadBytes = 256ull << 20;

// The records of a graph that is gone can still be asked for. Kept are those of the newest such
// graph of each probe, and older ones within these limits, because a job may capture again and
// again.
constexpr std::size_t kMaxRetiredSlots = 64;  // per probe
constexpr std::uint64_t kMaxRetiredBytes = 256ull << 20;

constexpr std::uint64_t kRoomBeside = 4u << 20;  // for a control file, and slots that come next
constexpr std::chrono::milliseconds kRoomPatience{500};
constexpr std::chrono::seconds kBetweenRequests{1};  // at first; then twice as long each time
constexpr std::chrono::seconds kLongestBetweenRequests{60};

// What eager calls may take of /dev/shm before shapes that their probes see no more give way.
constexpr double kEagerPart = 1.0 / 4;
// The newest shape of a probe gives way to other eager calls if it was not called for so long.
constexpr std::chrono::seconds kIdle{10};

// For how long a request as large as one that failed is not tried again, unless something was
// freed.
constexpr std::chrono::milliseconds kNoRoomFor{100};

// The stores of a leaf that has counted its run have arrived by then (CountedGraph).
constexpr auto kStoresArrive = CountedGraph::kStoresArrive;

// How often what waits for a reader, or for a GPU, is looked at.
constexpr std::chrono::milliseconds kBetweenLooks{20};

// `cgdebug-cli run -o` sets CGDEBUG_LOSSLESS for its job; a recording that waits for any job leaves
// a mark.
bool LosslessWanted() {
  if (DaemonForbidden()) return false;
  const std::string setting = words::ReadSetting("CGDEBUG_LOSSLESS");
  if (!setting.empty()) return setting == "1";
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

// A block without data if there is no room.
ring::Block SlotStore::TryAllocate(std::uint64_t bytes, std::uint64_t header_bytes) {
  try {
    return Segment().Allocate(bytes, header_bytes);
  } catch (const ring::SharedMemoryError& error) {
    if (!error.no_space()) throw;
    return {};
  }
}

ring::Block SlotStore::Allocate(const std::string& probe, std::uint64_t bytes,
                                std::uint64_t header_bytes, Need need) {
  try {
    if (bytes >= no_room_bytes_ && Clock::now() < no_room_until_) {
      throw ProbeError(ErrorKind::kNoSpace, "probe '" + probe + "': " + no_room_text_);
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
    room_wanted_ = std::max(room_wanted_, bytes);
    if (need == Need::kWait) {
      if (const auto room = RoomToAskFor()) AskForRoom(segment_.get(), *room);
    }
    return Segment().Allocate(bytes, header_bytes);
  } catch (const ring::SharedMemoryError& error) {
    if (error.no_space()) {
      no_room_bytes_ = bytes;
      no_room_until_ = Clock::now() + kNoRoomFor;
      no_room_text_ = error.what();
    }
    throw ProbeError(error.no_space() ? ErrorKind::kNoSpace : ErrorKind::kSystem,
                     "probe '" + probe + "': " + error.what());
  }
}

std::optional<std::uint64_t> SlotStore::RoomToAskFor() {
  const auto now = Clock::now();
  if (room_wanted_ == 0 || now < next_request_) return std::nullopt;
  request_pause_ =
      std::clamp<Clock::duration>(2 * request_pause_, kBetweenRequests, kLongestBetweenRequests);
  next_request_ = now + request_pause_;
  no_room_until_ = {};
  return std::exchange(room_wanted_, 0) + kRoomBeside;
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

// --- slots that come ---------------------------------------------------------------------------

void SlotStore::Reserve(ProbeState& probe, ProbeSlot& slot, Need need) {
  try {
    if (segment_->directory_full()) FreeLeaving(/*all=*/true, /*force=*/false);
    if (segment_->directory_full()) {
      (void)GiveWay(1, need == Need::kEager ? Give::kUnused : Give::kAny);
    }
    if (segment_->directory_full()) {  // nobody else's records
      EvictOldRetired(/*all=*/true, &probe);
      FreeLeaving(/*all=*/false, /*force=*/false);
    }
    slot.index = segment_->Reserve();
    slot.has_index = true;
  } catch (const ring::SharedMemoryError& error) {
    throw ProbeError(ErrorKind::kNoSpace, "probe '" + probe.name + "': " + error.what());
  }
}

ProbeSlot* SlotStore::Publish(ProbeState& probe, std::unique_ptr<ProbeSlot>& slot) {
  Slots node;  // now: nothing may throw once it is published
  node.emplace_back();
  MakeRoomForOne(probe.slots);
  try {
    segment_->Publish(slot->index, slot->block);
    slot->reader = segment_->OpenSlot(slot->index, slot->block);
  } catch (const ring::SharedMemoryError& error) {
    throw ProbeError(ErrorKind::kSystem, "probe '" + probe.name + "': " + error.what());
  }
  ++published_;
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
  if (slot.in_use_order) {
    eager_.erase(slot.use);
    eager_bytes_ -= slot.block.bytes;
    slot.in_use_order = false;
  }
  if (std::exchange(slot.is_leaving, true)) return;
  leaving_.push_back(&slot);
  leaving_bytes_ += slot.block.bytes;
}

void SlotStore::LetGoOfAll(ProbeState& probe) {
  for (ProbeSlot* slot : probe.slots) LetGo(*slot);
  probe.slots.clear();
  probe.newest_eager = nullptr;
  ++releases_;
  no_room_until_ = {};
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
  slot.last_used = Clock::now();
  slot.was_used_again = slot.used_at != 0;
  slot.used_at = ++probe.eager_uses;
  if ((slot.registration.flags & layout::kSlotHoldsOpLog) != 0) return;
  probe.newest_eager = &slot;
  if (slot.in_use_order) {
    eager_.splice(eager_.end(), eager_, slot.use);
    return;
  }
  slot.use = eager_.insert(eager_.end(), &slot);
  slot.in_use_order = true;
  eager_bytes_ += slot.block.bytes;
}

void SlotStore::EvictOldEager(ProbeState& probe, std::uint64_t bytes) {
  std::size_t count = 0;
  std::vector<ProbeSlot*> idle;
  for (ProbeSlot* slot : probe.slots) {
    if (slot->life.held_by_graph()) continue;
    ++count;
    Settle(*slot);
    if (!slot->life.pinned()) idle.push_back(slot);
  }
  if (count >= kMaxEagerSlots) {
    // First what nobody expects, or each shape that comes once would cost one that comes in turn,
    // and that the next one.
    std::ranges::sort(idle, {}, [&](const ProbeSlot* slot) {
      const bool is_expected =
          slot->was_used_again && probe.eager_uses - slot->used_at < kExpectedFor;
      return std::pair(is_expected, slot->used_at);
    });
    idle.resize(std::min(idle.size(), count - kMaxEagerSlots + 1));
    for (ProbeSlot* slot : idle) Evict(probe, *slot);
    FreeLeaving(/*all=*/false, /*force=*/false);
  }
  const double most = kEagerPart * ring::GetShmSpace().total_bytes;
  const double over = static_cast<double>(eager_bytes_ + bytes) - most;
  if (over > 0) GiveWay(static_cast<std::uint64_t>(over), Give::kOldShapes);
}

// Gives up slots of eager calls that were unused for the longest time, until they held `bytes`.
// False: there is none to give up.
bool SlotStore::GiveWay(std::uint64_t bytes, Give which) {
  const auto now = Clock::now();
  std::uint64_t given = 0;
  for (auto it = eager_.begin(); it != eager_.end() && given < bytes;) {
    ProbeSlot& slot = **it++;
    Settle(slot);
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
    if (only != nullptr && slot.probe_id != only->id) continue;
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
      slot.gives_way = only != nullptr;
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
  GiveBuffersBack(slot);
  no_room_until_ = {};
  if (slot.reader) {
    --published_;
    segment_->Release(slot.index, slot.block);
  } else {
    if (slot.has_index) segment_->Unreserve(slot.index);
    if (slot.block.data != nullptr) segment_->Free(slot.block);
  }
  slot.expected.reset();
}

void SlotStore::Remove(ProbeSlot& slot) {
  Free(slot);
  leaving_bytes_ -= slot.block.bytes;
  slots_.erase(slot.self);
}

void SlotStore::GiveBuffersBack(ProbeSlot& slot) {
  if (slot.reader && slot.buffers.staging != nullptr && capture::IsOnDevice(slot)) {
    on_device_bytes_[slot.buffers.device] -= slot.registration.device_bytes;
  }
  capture::FreeBuffers(slot.buffers);
  slot.buffers = {};
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
  if (!census->Knows(graph_id)) census->Begin(graph_id, label, "", /*counted=*/false);
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
  const auto now = Clock::now();
  if (ending_.empty() || now < next_end_) return;
  next_end_ = now + kBetweenLooks;
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

// False: no graph has died since the last call.
bool SlotStore::NoteGraphsGone() {
  const std::uint64_t gone = capture::SlotLife::GraphsGone();
  if (std::exchange(graphs_gone_, gone) == gone) return false;
  ++releases_;
  no_room_until_ = {};
  for (const auto& slot : slots_) {
    if (!slot->life.graph_is_gone() || slot->graph_gone_seen) continue;
    slot->graph_gone_seen = true;
    if (census_) census_->GoneById(slot->registration.graph_id);
    Retire(*slot);
    // The graph's nodes run no more, but the probe may still show what is in device memory.
    if (capture::IsOnDevice(*slot) && !slot->life.unreachable()) continue;
    GiveBuffersBack(*slot);
  }
  new_leaving_ = 0;  // some of those that wait for their graph may be freed
  return true;
}

// Takes the pin of eager calls away when the GPU has finished them.
void SlotStore::Settle(ProbeSlot& slot) {
  if (!slot.launches_pin) return;
  if (ring::LoadAcquire(*slot.buffers.runs) != slot.launches) {
    slot.all_ran_since.reset();
    return;
  }
  const auto now = Clock::now();
  if (!slot.all_ran_since) slot.all_ran_since = now;
  if (now - *slot.all_ran_since < kStoresArrive) return;
  slot.launches_pin = false;
  slot.all_ran_since.reset();
  slot.life.Unpin();
}

bool SlotStore::IsUnreachable(ProbeSlot& slot) {
  Settle(slot);
  return slot.life.unreachable();
}

// Frees slots that nobody needs. Not `all`: looks only at those that were let go of since the last
// call. `force`: what is kept for readers that may come later goes too.
void SlotStore::FreeLeaving(bool all, bool force) {
  if (finished_) return;
  const auto now = Clock::now();
  all |= force || now >= next_look_ || leaving_bytes_ >= look_from_bytes_;
  const std::size_t begin = all ? 0 : new_leaving_;
  if (begin == leaving_.size()) return;
  if (all) next_look_ = now + kBetweenLooks;
  std::uint64_t unread_bytes = 0;
  const ProbeSlot* newest_unread = nullptr;
  const auto free_if = [&](auto&& is_over) {
    const auto from = leaving_.begin() + static_cast<std::ptrdiff_t>(begin);
    leaving_.erase(std::remove_if(from, leaving_.end(),
                                  [&](ProbeSlot* slot) {
                                    if (!IsUnreachable(*slot) || !is_over(*slot)) return false;
                                    Remove(*slot);
                                    return true;
                                  }),
                   leaving_.end());
  };
  free_if([&](const ProbeSlot& slot) {
    if (!slot.reader || Unread(slot) == 0) return true;
    unread_bytes += slot.block.bytes;
    newest_unread = &slot;
    return false;
  });
  new_leaving_ = leaving_.size();
  if (all) look_from_bytes_ = leaving_bytes_ + kMaxUnreadBytes / 8;
  if (newest_unread == nullptr) return;
  const bool alive = DaemonAlive();
  const bool may_come = !DaemonForbidden();
  // It may not have found this segment yet.
  const bool runs = !alive && may_come && ring::IsMarked(ring::MarkKind::kReader);
  free_if([&](const ProbeSlot& slot) {
    const std::uint64_t unread = Unread(slot);
    const bool awaited = alive || runs || (may_come && NeedsDaemon(slot));
    const bool affordable = alive || unread_bytes <= kMaxUnreadBytes || &slot == newest_unread;
    if (awaited && affordable && !force && !slot.gives_way) return false;
    if (awaited || slot.evicted) ring::Add(segment_->producer()->released_unread, unread);
    unread_bytes -= std::min(unread_bytes, slot.block.bytes);
    return true;
  });
  new_leaving_ = leaving_.size();
  if (all) look_from_bytes_ = leaving_bytes_ + kMaxUnreadBytes / 8;
}

void SlotStore::Sweep(bool force, bool all) {
  // After Finish() the process ends, and what it leaves behind stays readable.
  if (segment_ == nullptr || finished_) return;
  EndCountedGraphs();
  if (NoteGraphsGone() || force) EvictOldRetired(/*all=*/force);
  FreeLeaving(all, force);
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

std::uint32_t SlotStore::published() const { return published_; }

std::uint64_t SlotStore::BytesOnDevice(int device) const {
  const auto found = on_device_bytes_.find(device);
  return found == on_device_bytes_.end() ? 0 : found->second;
}

}  // namespace cgdebug
