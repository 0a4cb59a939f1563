// slot_store.h: the segment of a process and its slots, and when they are freed.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libprobe/ring/graph_census.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/slots/current_step.h"
#include "libprobe/slots/not_seen.h"
#include "libprobe/slots/probe_registry.h"

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

  // How much is given up for room that is missing.
  enum class Need : std::uint8_t {
    kEager,    // old shapes of eager calls
    kCapture,  // also what is kept for readers that may come later
    kWait,     // likewise; then asks the daemon, and waits for it with the lock
  };
  // Shared memory, after making room for it if needed. Fails: throws ProbeError that names `probe`.
  ring::Block Allocate(const std::string& probe, std::uint64_t bytes, std::uint64_t header_bytes,
                       Need need = Need::kWait);
  // What dead jobs left is to be removed for what Allocate() had no room for: how many bytes. At
  // most once in a while, because it takes the daemon some milliseconds. nullopt: not now.
  std::optional<std::uint64_t> RoomToAskFor();
  // Asks for them, and waits for the answer. Thread: any, without the lock.
  static void AskForRoom(ring::SegmentWriter* segment, std::uint64_t bytes);
  // A copy of `bytes` in shared memory, which is freed with its last owner.
  std::shared_ptr<ring::Block> Share(const std::string& probe, std::span<const std::byte> bytes);
  // What the probe expects of `tensor`, in shared memory, which its slots share.
  std::shared_ptr<ring::Block> ExpectedBlock(ProbeState& probe, std::size_t index,
                                             const TensorRef& tensor);

  // Reserves a place in the directory, so that nothing is captured for a slot that nobody can see.
  // Fails: throws ProbeError.
  void Reserve(ProbeState& probe, capture::ProbeSlot& slot, Need need);
  // Shows the slot to readers and takes it. Requires: Reserve(). Fails: throws ProbeError, and the
  // caller keeps the slot, because a graph may refer to it.
  capture::ProbeSlot* Publish(ProbeState& probe, std::unique_ptr<capture::ProbeSlot>& slot);
  // Takes back a slot that was not published. It is freed when no half-built graph refers to it.
  void Discard(std::unique_ptr<capture::ProbeSlot> slot);

  // Notes that an eager slot is used now.
  void Touch(ProbeState& probe, capture::ProbeSlot& slot);
  // Makes room for one more eager slot of the probe, of `bytes`, by giving up those that were
  // unused for the longest time: of this probe if it has many, and of all if they take much memory.
  // A slot with calls still on their way to the GPU stays, so there may be more of them for a
  // while.
  void EvictOldEager(ProbeState& probe, std::uint64_t bytes);
  // How often a probe or a graph has left its slots.
  std::uint64_t releases() const { return releases_; }
  // Lets go of everything that the probe has. What the daemon has not read yet stays for a while.
  void LetGoOfAll(ProbeState& probe);

  // The graph's owner is gone: its slots are freed when all of its launches have finished.
  void AwaitEnd(std::shared_ptr<CountedGraph> graph) { ending_.push_back(std::move(graph)); }

  // Frees what nobody needs. With `force`, what is kept for readers that may come later goes too.
  // Without `all`, what waits for a reader is looked at now and then only.
  void Sweep(bool force, bool all = false);
  // From now on Sweep() frees nothing: the process ends, and what it leaves behind stays readable.
  // False if this was called before, or there is no segment.
  bool Finish();
  bool finished() const { return finished_; }

  // True if the daemon has consumed every entry of `probe` that someone waits for; nullptr: of all
  // probes, closed ones too.
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
  // How many bytes of that device they take.
  std::uint64_t BytesOnDevice(int device) const;

 private:
  using Clock = std::chrono::steady_clock;
  using Slots = std::list<std::unique_ptr<capture::ProbeSlot>>;

  void EndCountedGraphs();
  bool HeldByUserObject(const CountedGraph& graph) const;
  bool NoteGraphsGone();
  void FreeLeaving(bool all, bool force);
  static void Settle(capture::ProbeSlot& slot);
  // Whether nothing reaches it any more, calls on their way to the GPU included.
  static bool IsUnreachable(capture::ProbeSlot& slot);
  // Which eager slots.
  enum class Give : std::uint8_t {
    kOldShapes,  // that their probes see no more; what a daemon has still to read stays for it
    kUnused,     // likewise, and those of probes that nobody calls
    kAny,
  };
  bool GiveWay(std::uint64_t bytes, Give which);
  ring::Block TryAllocate(std::uint64_t bytes, std::uint64_t header_bytes);
  void LetGo(capture::ProbeSlot& slot);
  // Gives up one slot of a probe that goes on, and counts what was unread in it.
  void Evict(ProbeState& probe, capture::ProbeSlot& slot);
  void EvictOldRetired(bool all, const ProbeState* only = nullptr);
  void KeepVerdict(const capture::ProbeSlot& slot);
  void Retire(capture::ProbeSlot& slot);
  void GiveBuffersBack(capture::ProbeSlot& slot);
  void Free(capture::ProbeSlot& slot);
  void Remove(capture::ProbeSlot& slot);  // frees it, and destroys it

  const ProbeRegistry* probes_;
  CurrentStep* step_;
  NotSeen* not_seen_;
  std::unique_ptr<ring::SegmentWriter> segment_;  // never destroyed, as the probe table is not
  std::optional<ring::GraphCensusWriter> census_;
  bool census_failed_ = false;
  Slots slots_;                  // in order of creation
  std::uint32_t published_ = 0;  // of them
  std::uint64_t releases_ = 0;
  std::list<capture::ProbeSlot*> eager_;  // of them, the one that was unused for longest first
  std::uint64_t eager_bytes_ = 0;         // that those take
  // Let go of by their probes, in that order. Those from `new_leaving_` on were never looked at.
  std::vector<capture::ProbeSlot*> leaving_;
  std::size_t new_leaving_ = 0;
  std::uint64_t leaving_bytes_ = 0;    // that they take
  std::uint64_t look_from_bytes_ = 0;  // if they take so much, all of them are looked at
  Clock::time_point next_look_;        // at all of them
  std::uint64_t graphs_gone_ = 0;      // SlotLife::GraphsGone() at the last look
  std::vector<std::shared_ptr<CountedGraph>> ending_;  // their owners are gone
  Clock::time_point next_end_;                         // when they are looked at
  std::map<int, std::uint64_t> on_device_bytes_;       // by device
  ReadState freed_gaps_;
  // What Allocate() did not find the last time, until when, and why.
  std::uint64_t no_room_bytes_ = 0;
  Clock::time_point no_room_until_;
  std::string no_room_text_;
  std::uint64_t room_wanted_ = 0;  // and nobody has asked for it yet
  Clock::time_point next_request_;
  Clock::duration request_pause_{0};
  bool lossless_ = false;
  bool finished_ = false;
};

}  // namespace cgdebug
