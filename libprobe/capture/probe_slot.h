// probe_slot.h: one slot of this process: its ring, its buffers, and what still needs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "libprobe/ring/segment_writer.h"
#include "libprobe/ring/serial.h"
#include "libprobe/ring/slot_ring_reader.h"
#include "libprobe/ring/slot_ring_writer.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::capture {

struct DirectState;

// Memory that CUDA copies through. All null for CPU tensors.
struct Buffers {
  enum class Kind : std::uint8_t { kNone, kEager, kCallback, kDirect };
  Kind kind = Kind::kNone;
  // Device memory: the tensor as it was when the compute path passed the probe, or parts of its
  // statistics. kCallback, kDirect.
  void* staging = nullptr;
  void* pinned = nullptr;        // host memory: target of the copy; kEager, kCallback
  DirectState* state = nullptr;  // device memory; kDirect
  std::uint64_t bytes = 0;
  int device = 0;
  bool from_fallback = false;  // staging came from the DeviceAllocator
  std::uint32_t slab = 0;      // in which pinned lies; kEager
  std::uint64_t slab_offset = 0;
};

// Owned by the probe table, which frees it when nothing needs it any more. The graph says so
// through `graph_gone` (set on a driver thread, which may do nothing else), the probe through
// `probe_gone`, queued eager callbacks and readers of its records through `pending`.
struct ProbeSlot {
  std::uint64_t probe_id = 0;
  layout::SlotRegistration registration = {};
  ring::Block block;
  std::shared_ptr<ring::Block> expected;  // shared by the probe's slots
  std::optional<ring::SlotRingWriter> writer;
  std::optional<ring::SlotRingReader> reader;  // set once published
  std::uint32_t index = 0;                     // in the directory, once published
  Buffers buffers;
  std::shared_ptr<ring::SharedSerial> graph_serial;  // of a capture's slots; null when eager
  std::uint64_t last_serial = 0;                     // of the last replay
  void* eager_stream = nullptr;
  bool in_graph = false;  // the graph holds a user object for this slot
  bool retired = false;
  bool evicted = false;               // its probe goes on, and gave it up to make room
  std::uint64_t last_used = 0;        // of an eager slot, as a count of uses in the probe table
  std::uint64_t cleared_ordinal = 0;  // Records() starts after it
  std::mutex eager_mutex;             // eager CPU calls may come from several threads

  std::atomic<bool> armed{true};
  std::atomic<bool> graph_gone{false};
  std::atomic<bool> probe_gone{false};
  std::atomic<std::uint32_t> pending{0};

  // The serial of the replay that has just begun. Thread: the slot's writer.
  std::uint64_t TakeSerial() noexcept {
    last_serial = graph_serial ? graph_serial->After(last_serial) : ring::NextSerial();
    return last_serial;
  }

  // Whether a driver thread may still write through this slot, or a thread reads it.
  bool in_use() const {
    return (in_graph && !graph_gone.load(std::memory_order_acquire)) ||
           pending.load(std::memory_order_acquire) != 0;
  }
};

}  // namespace cgdebug::capture
