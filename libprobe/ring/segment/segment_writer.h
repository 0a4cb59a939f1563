// segment_writer.h: a producer's own segment: creates it, grows it by extents, hands out blocks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libprobe/ring/reader_gate.h"
#include "libprobe/ring/segment/free_ranges.h"
#include "libprobe/ring/segment/shared_file.h"
#include "libprobe/ring/slot_ring_reader.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

// Who the producer is, as the daemon shows it. Texts that are too long are cut.
struct Identity {
  std::string version;
  std::string run_id;
  std::string command;
  std::string hostname;
  std::string socket;      // of the one daemon that may read it; empty = any
  std::string recordings;  // directory for recordings that the job asks for; left out, not cut, if
                           // it is too long
  std::int32_t rank = -1;
  std::int32_t world_size = 1;
  std::int32_t restart_count = 0;
  std::uint64_t launch = 0;  // as SegmentHeader
  std::int32_t local_rank = -1;
  std::int32_t local_world_size = 0;
  std::uint32_t most_slots = layout::kMaxSlots;  // that the job may have at a time
};

// A range of an extent. Page aligned.
struct Block {
  std::uint32_t extent = 0;  // 0 = none
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
};

// Thread:   calls that allocate, publish or retire: one at a time (the probe table's mutex).
// Lifetime: a forked child leaves the object alone; the segment is its parent's.
class SegmentWriter {
 public:
  // Fails: throws SharedMemoryError.
  explicit SegmentWriter(const Identity& identity);

  // Room for a slot block or an expected tensor; the first block_header_bytes are zero.
  // Fails: throws SharedMemoryError; what was there stays usable.
  Block Allocate(std::uint64_t bytes, std::uint64_t block_header_bytes = 0);
  void Free(const Block& block) noexcept;

  // Takes an index of the directory for a slot that will be published.
  // Fails: throws SharedMemoryError when the directory is full, or cannot grow.
  std::uint32_t Reserve();
  // Gives it back. Requires: it was not published.
  void Unreserve(std::uint32_t index) noexcept;
  // Shows the slot at the start of `block` to readers. Requires: the registration is written, and
  // the index is reserved.
  void Publish(std::uint32_t index, const Block& block);
  // The same with an index of its own, which it returns. Fails: as Reserve().
  std::uint32_t Publish(const Block& block) {
    const std::uint32_t index = Reserve();
    Publish(index, block);
    return index;
  }
  bool directory_full() const { return free_indexes_.empty() && reserved_count_ >= most_slots_; }
  // Shows the table of graphs that lies in `block` (graph_census.h).
  void PublishGraphs(const Block& block);
  // Says that its graph is gone: nothing new comes.
  void Retire(std::uint32_t index);
  // Says that its entries are no longer wanted: block and index may be used again.
  void Release(std::uint32_t index, const Block& block) noexcept;

  // Reads the producer's own ring.
  SlotRingReader OpenSlot(std::uint32_t index, const Block& block) const;

  // The mapping of an extent (from 1) or of the control file (0) up to its directory, for lanes
  // that hand it to a GPU.
  struct Mapping {
    std::byte* data;
    std::uint64_t bytes;
  };
  Mapping mapping(std::uint32_t extent) const {
    if (extent == 0) return {control_.data(), layout::kDirectoryOffset};
    const SharedFile& file = extents_.at(extent);
    return {file.data(), file.bytes()};
  }

  layout::ProducerLine* producer() const;
  layout::NotSeenBlock* not_seen() const;
  const layout::ConsumerLine* consumer() const;
  const layout::Refusal* refusals() const;
  ReaderGate* gate() { return &gate_; }
  const std::string& name() const { return control_.name(); }
  std::uint64_t shm_bytes() const;

  // Asks the daemon to remove what dead jobs left, until `bytes` are free in /dev/shm, and waits
  // for its answer. False when none reads the segment or none came within `patience`.
  bool AskForRoom(std::uint64_t bytes, std::chrono::nanoseconds patience);

  // How many bytes of device memory the process's probes take.
  void ShowDeviceBytes(std::uint64_t bytes);

  // Marks a clean end. With `unlink`, for when nobody will read the files, removes them.
  void Close(bool unlink);

 private:
  void Grow(std::uint64_t bytes);
  layout::MemoryLine* memory_line() const;
  // Creates an extent of `bytes` under the next number, or under another one if that name is taken.
  SharedFile CreateExtent(std::uint64_t bytes, std::uint32_t* index);
  layout::DirectoryEntry* directory() const;

  SharedFile control_;
  const std::uint32_t most_slots_;
  ReaderGate gate_;
  std::map<std::uint32_t, SharedFile> extents_;  // by number
  std::uint32_t last_extent_ = 0;
  FreeRanges free_;  // by extent
  std::vector<std::uint32_t> free_indexes_;
  std::uint32_t reserved_count_ = 0;  // entries of the directory that were ever reserved
  std::uint32_t slot_count_ = 0;      // own copy: shared memory must not steer the writer
  std::uint64_t room_requests_ = 0;
  bool unlinked_ = false;
};

}  // namespace cgdebug::ring
