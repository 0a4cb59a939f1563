// slot_store.h: the segment of a process and its slots, and when they are freed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libprobe/current_step.h"
#include "libprobe/not_seen.h"
#include "libprobe/probe_registry.h"
#include "libprobe/ring/graph_census.h"
#include "libprobe/ring/segment_writer.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class SlotStore {
 public:
  // All of them outlive the store.
  SlotStore(const ProbeRegistry* probes, CurrentStep* step, NotSeen* not_seen)
      : probes_(probes), step_(step), not_seen_(not_seen) {}

  // The segment. The first call makes it. Fails: throws SharedMemoryError.
  ring::SegmentWriter& Segment();
  // The segment if there is one already, else nullptr.
  ring::SegmentWriter* segment() const { return segment_.get(); }
  // Whether a recording waited for this process, so that its slots lose nothing.
  bool lossless() const { return lossless_; }

  // The census of graphs in the segment. The first call makes both; nullptr if there is no room.
  ring::GraphCensusWriter* Census() noexcept;
  // The same if it is there already.
  ring::GraphCensusWriter* census() { return census_ ? &*census_ : nullptr; }
  // Counts a probe's call in the census. A graph that nobody announced is in it from here on.
  void CountProbe(std::uint64_t graph_id, const std::string& label, std::uint64_t bytes);

  // Shared memory, after making room for it if needed. Fails: throws ProbeError that names `probe`.
  ring::Block Allocate(const std::string& probe, std::uint64_t bytes, std::uint64_t header_bytes);
  // A copy of `bytes` in shared memory, which is freed with its last owner.
  std::shared_ptr<ring::Block> Share(const std::string& probe, std::span<const std::byte> bytes);
  // What the probe expects of `tensor`, in shared memory, which its slots share.
  std::shared_ptr<ring::Block> ExpectedBlock(ProbeState& probe, std::size_t index,
                                             const TensorRef& tensor);

  // Shows the slot to readers and takes it. Fails: throws ProbeError, and the caller keeps the
  // slot, because a graph may refer to it.
  capture::ProbeSlot* Publish(ProbeState& probe, std::unique_ptr<capture::ProbeSlot>& slot);
  // Takes back a slot that was not published. It is freed when no half-built graph refers to it.
  void Discard(std::unique_ptr<capture::ProbeSlot> slot);

  // Notes that an eager slot is used now.
  void Touch(capture::ProbeSlot& slot) { slot.last_used = ++eager_uses_; }
  // Makes room for one more eager slot of the probe by giving up those that were unused for the
  // longest time. A slot with calls still on their way to the GPU stays, so there may be more of
  // them for a while.
  void EvictOldEager(ProbeState& probe);
  // Lets go of everything that the probe has. What the daemon has not read yet stays for a while.
  void LetGoOfAll(ProbeState& probe);

  // The graph's owner is gone: its slots are freed when all of its launches have finished.
  void AwaitEnd(std::shared_ptr<CountedGraph> graph) { ending_.push_back(std::move(graph)); }

  // Frees what nobody needs. With `force`, what is kept for readers that may come later goes too.
  void Sweep(bool force);
  // From now on Sweep() frees nothing: the process ends, and what it leaves behind stays readable.
  // False if this was called before, or there is no segment.
  bool Finish();
  bool finished() const { return finished_; }

  // Whether the daemon has consumed what it must of `probe`; nullptr: of every probe, the closed
  // ones included.
  bool AllDrained(const ProbeState* probe) const;
  // Whether it has read everything, also what nobody waits for.
  bool AllRead() const;
  // Counts what nobody has looked at, freed slots included. Does not set ReadState::all.
  ReadState Gaps() const;
  // Whether a daemon reads the segment.
  bool DaemonAlive() const { return segment_ != nullptr && segment_->gate()->ReaderAlive(); }
  std::uint32_t published() const;
  // The slot whose counters on the device these are; nullptr if it is gone.
  const capture::ProbeSlot* FindState(const capture::DirectState* state) const;
  // The slots that have values in device memory.
  std::vector<capture::ProbeSlot*> OnDevice() const;

 private:
  void EndCountedGraphs();
  bool HeldByUserObject(const CountedGraph& graph) const;
  void MakeRoom(std::uint64_t bytes);
  void LetGo(capture::ProbeSlot& slot);
  // Gives up one slot of a probe that goes on, and counts what was unread in it.
  void Evict(ProbeState& probe, capture::ProbeSlot& slot);
  void EvictOldRetired(bool all);
  void KeepVerdict(const capture::ProbeSlot& slot);
  void Retire(capture::ProbeSlot& slot);
  void Free(capture::ProbeSlot& slot);

  const ProbeRegistry* probes_;
  CurrentStep* step_;
  NotSeen* not_seen_;
  std::unique_ptr<ring::SegmentWriter> segment_;  // never destroyed, as the probe table is not
  std::optional<ring::GraphCensusWriter> census_;
  bool census_failed_ = false;
  std::vector<std::unique_ptr<capture::ProbeSlot>> slots_;  // in order of creation
  std::vector<std::shared_ptr<CountedGraph>> ending_;       // their owners are gone
  ReadState freed_gaps_;
  std::uint64_t eager_uses_ = 0;
  bool lossless_ = false;
  bool finished_ = false;
};

}  // namespace cgdebug
