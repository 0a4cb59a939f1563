// probe_slot.h: one slot of this process: its ring, its buffers, and what still needs it.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "libprobe/capture/buffers.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/graph/counted_graph.h"
#include "libprobe/capture/graph/eager_looks.h"
#include "libprobe/capture/graph/root_graph.h"
#include "libprobe/capture/graph/slot_life.h"
#include "libprobe/capture/graph/staging_layout.h"
#include "libprobe/capture/pool_parts.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/ring/serial.h"
#include "libprobe/ring/slot_ring_reader.h"
#include "libprobe/ring/slot_ring_writer.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::capture {

// Owned by the SlotStore, which frees it when `life` says that nothing reaches it any more.
//
// Thread: the slot's writer is the driver thread that runs the callback, or a thread that makes an
//         eager call. It does not hold the probe table's lock, and may touch only the members that
//         name it. The other members belong to the holder of that lock.
struct ProbeSlot {
  // For the writer and the lock holder. The holder changes them only while nothing can write:
  // before the capture or the first call, and when the graph is gone.
  layout::SlotRegistration registration = {};
  Buffers buffers;
  StagingLayout staging;                             // of buffers.staging; kDirect
  std::shared_ptr<ring::SharedSerial> graph_serial;  // of a capture's slots; null when eager
  std::shared_ptr<RootGraph> root_graph;             // in the body of a conditional node

  // Writer alone.
  std::optional<ring::SlotRingWriter> writer;
  std::uint64_t last_serial = 0;  // of the last replay
  std::mutex eager_mutex;         // eager CPU calls may come from several threads

  SlotLife life;  // its header says which calls need no lock

  // Lock holder: the graph that holds the slot, if its owner counts its launches. Null if a user
  // object tells when the graph is gone.
  std::shared_ptr<CountedGraph> counted;
  // Lock holder: the memory of what other kernels of the graph leave for the leaf.
  std::shared_ptr<PoolParts> parts;
  PoolParts::Place parts_place;  // if no graph that is counted has it

  // Lock holder. A thread that pinned the slot may read `registration`, `index` and `reader`
  // without the lock, because they are constant once the slot is published.
  std::uint64_t probe_id = 0;
  ring::Block block;
  std::shared_ptr<ring::Block> expected;  // shared by the probe's slots
  // The other slot that this one is compared with. Only while the slot is made: that one may be
  // freed later.
  ProbeSlot* reference = nullptr;
  // Set if other slots are compared with this one. They say where a later kernel of the graph finds
  // the tensor of the replay, who wrote it on which stream, and which node puts it into the ring.
  std::byte* staged = nullptr;
  void* staged_on = nullptr;
  Position staged_by;
  void* host_node = nullptr;
  std::optional<ring::SlotRingReader> reader;  // set once published
  std::uint32_t index = 0;                     // in the directory, if `has_index`
  bool has_index = false;                      // reserved or published
  void* eager_stream = nullptr;
  std::vector<std::byte> op_log_table;  // of an eager page of an op log: the rows in it
  // Of an eager slot: when it was used last, and its place among the others in that order.
  std::chrono::steady_clock::time_point last_used;
  std::uint64_t used_at = 0;    // ProbeState::eager_uses then
  bool was_used_again = false;  // after its first use
  std::list<ProbeSlot*>::iterator use;
  bool in_use_order = false;
  EagerLooks looks;  // of a slot with kEager
  // Of a slot with kEagerStats: calls on their way to the GPU hold one pin together.
  std::uint64_t launches = 0;
  bool launches_pin = false;
  std::optional<std::chrono::steady_clock::time_point> all_ran_since;
  std::list<std::unique_ptr<ProbeSlot>>::iterator self;  // in the SlotStore, once it owns the slot
  std::uint64_t cleared_ordinal = 0;                     // Records() starts after it
  bool gives_way = false;        // what is unread in it goes, because its room is needed
  bool graph_gone_seen = false;  // by the SlotStore
  bool is_leaving = false;       // in the list of those that may be freed
  bool retired = false;          // readers were told that nothing new comes
  bool evicted = false;          // its probe is still open, but gave it up to make room

  // The serial of the replay that has just begun. Thread: the slot's writer.
  std::uint64_t TakeSerial() noexcept {
    last_serial = graph_serial ? graph_serial->After(last_serial) : ring::NextSerial();
    return last_serial;
  }

  // As PoolParts::Take(), as long as the slot's graph may run. Thread: the lock holder.
  // Requires: DirectLane::Begin().
  layout::DeviceStats* TakeParts(std::uint64_t count, int device) {
    if (counted != nullptr) {
      parts = counted->parts();
      return counted->TakeParts(count, device);
    }
    if (parts == nullptr) parts = std::make_shared<PoolParts>();
    return parts->Take(count, device, &parts_place);
  }
};

}  // namespace cgdebug::capture
