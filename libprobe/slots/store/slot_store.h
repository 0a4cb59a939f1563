// slot_store.h: the slots of a process: their memory, and when it is freed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/slots/not_seen.h"
#include "libprobe/slots/probe_registry.h"
#include "libprobe/slots/store/all_slots.h"
#include "libprobe/slots/store/eager_slots.h"
#include "libprobe/slots/store/ending_graphs.h"
#include "libprobe/slots/store/held_memory.h"
#include "libprobe/slots/store/leaving_slots.h"
#include "libprobe/slots/store/missing_room.h"
#include "libprobe/slots/store/process_segment.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class SlotStore {
 public:
  // All of them outlive the store.
  SlotStore(const ProbeRegistry* probes, ProcessSegment* segment, NotSeen* not_seen)
      : probes_(probes),
        segment_(segment),
        not_seen_(not_seen),
        held_(probes, segment),
        leaving_(segment) {}

  // How much is given up for room that is missing.
  enum class Need : std::uint8_t {
    kEager,    // old shapes of eager calls
    kCapture,  // also what is kept for readers that may come later
    kWait,     // likewise; then asks the daemon, and waits for it with the lock
  };
  // Shared memory, after making room for it if needed. Fails: throws ProbeError that names `probe`.
  ring::Block Allocate(const std::string& probe, std::uint64_t bytes, std::uint64_t header_bytes,
                       Need need = Need::kWait);
  // What dead jobs left is to be removed for what Allocate() had no room for: how many bytes.
  // nullopt: not now.
  std::optional<std::uint64_t> RoomToAskFor() { return missing_room_.TakeRequest(); }
  // A copy of `bytes` in shared memory, which is freed with its last owner.
  std::shared_ptr<ring::Block> Share(const std::string& probe, std::span<const std::byte> bytes);

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
  void EvictOldEager(ProbeState& probe, std::uint64_t bytes);
  // How often a probe or a graph has left its slots.
  std::uint64_t releases() const { return releases_; }
  // Lets go of everything that the probe has. What the daemon has not read yet stays for a while.
  void LetGoOfAll(ProbeState& probe);

  // The graph's owner is gone: its slots are freed when all of its launches have finished.
  void AwaitEnd(std::shared_ptr<CountedGraph> graph) { ending_.Add(std::move(graph)); }

  // Frees what nobody needs. With `force`, what is kept for readers that may come later goes too.
  // Without `all`, what waits for a reader is looked at now and then only.
  void Sweep(bool force, bool all = false);
  // From now on Sweep() frees nothing: the process ends, and what it leaves behind stays readable.
  // False if this was called before, or there is no segment.
  bool Finish();
  bool finished() const { return finished_; }

  const SlotList& slots() const { return slots_; }  // in order of creation
  // Counts what nobody has looked at, freed slots included. Does not set ReadState::all.
  ReadState Gaps() const;
  const HeldMemory& held() const { return held_; }

 private:
  bool NoteGraphsGone();
  void FreeLeaving(bool all, bool force);
  using Give = EagerSlots::Give;
  bool GiveWay(std::uint64_t bytes, Give which);
  ring::Block TryAllocate(std::uint64_t bytes, std::uint64_t header_bytes);
  void LetGo(capture::ProbeSlot& slot);
  // Gives up one slot of a probe that goes on, and counts what was unread in it.
  void Evict(ProbeState& probe, capture::ProbeSlot& slot);
  void EvictOldRetired(bool all, const ProbeState* only = nullptr);
  void Retire(capture::ProbeSlot& slot);
  void Remove(capture::ProbeSlot& slot);  // frees it, and destroys it

  const ProbeRegistry* probes_;
  ProcessSegment* segment_;
  NotSeen* not_seen_;
  SlotList slots_;  // in order of creation
  HeldMemory held_;
  std::uint64_t releases_ = 0;
  EagerSlots eager_;
  LeavingSlots leaving_;
  std::uint64_t graphs_gone_ = 0;  // SlotLife::GraphsGone() at the last look
  EndingGraphs ending_;
  MissingRoom missing_room_;
  bool finished_ = false;
};

}  // namespace cgdebug
