// slot_life.h: who still needs a slot.
#pragma once

#include <atomic>
#include <cstdint>

namespace cgdebug::capture {

// Two parties refer to a slot: its probe, which shows the records, and the graph whose nodes write
// into it.
enum class SlotPhase : std::uint8_t {
  kLive = 0,          // the probe wants it
  kDisarmed = 1,      // the probe let it go; the graph may still replay, but writes nothing
  kGraphGone = 2,     // the graph is gone; the probe still shows the records
  kUnreferenced = 3,  // neither; a daemon may still have to read what is in it
};

// The phase of a slot, and its pins. Each party leaves once, the two in any order:
//
//   phase        the probe lets go      the graph is gone
//   kLive        kDisarmed (*)          kGraphGone
//   kDisarmed    -                      kUnreferenced
//   kGraphGone   kUnreferenced          -
//
//   (*) or kUnreferenced, if no graph holds the slot
//
// A pin keeps the memory of a slot in every phase. An eager call that is queued on a stream holds
// one, and so does a thread that reads the records.
class SlotLife {
 public:
  // --- Thread: any, without a lock. These are what the job's and the driver's threads call.

  // Whether a replay or an eager call may write.
  bool armed() const noexcept { return (word_.load(std::memory_order_acquire) & kProbeLeft) == 0; }
  void GraphIsGone() noexcept {
    word_.fetch_or(kGraphLeft, std::memory_order_release);
    graphs_gone_.fetch_add(1, std::memory_order_release);
  }
  // Grows whenever a graph let go of a slot of this process, so that nobody has to look at all of
  // them to learn that none did.
  static std::uint64_t GraphsGone() noexcept {
    return graphs_gone_.load(std::memory_order_acquire);
  }
  void Unpin() noexcept { pins_.fetch_sub(1, std::memory_order_release); }

  // --- Thread: one at a time (the probe table's lock).

  // From here until GraphIsGone() a graph refers to the slot. Requires: kLive.
  void HoldByGraph() noexcept { held_by_graph_ = true; }
  void LetGo() noexcept {
    word_.fetch_or(held_by_graph_ ? kProbeLeft : kProbeLeft | kGraphLeft,
                   std::memory_order_release);
  }
  void Pin() noexcept { pins_.fetch_add(1, std::memory_order_relaxed); }

  SlotPhase phase() const noexcept {
    return static_cast<SlotPhase>(word_.load(std::memory_order_acquire));
  }
  // Whether a graph refers to the slot, or did.
  bool held_by_graph() const noexcept { return held_by_graph_; }
  // Whether nodes wrote into the slot and never will again.
  bool graph_is_gone() const noexcept {
    return held_by_graph_ && (word_.load(std::memory_order_acquire) & kGraphLeft) != 0;
  }
  bool pinned() const noexcept { return pins_.load(std::memory_order_acquire) != 0; }
  // Whether nothing in this process can reach the slot again.
  bool unreachable() const noexcept { return phase() == SlotPhase::kUnreferenced && !pinned(); }

 private:
  static constexpr std::uint8_t kProbeLeft = 1;
  static constexpr std::uint8_t kGraphLeft = 2;
  static_assert(static_cast<std::uint8_t>(SlotPhase::kDisarmed) == kProbeLeft);
  static_assert(static_cast<std::uint8_t>(SlotPhase::kGraphGone) == kGraphLeft);
  static_assert(static_cast<std::uint8_t>(SlotPhase::kUnreferenced) == (kProbeLeft | kGraphLeft));

  static inline std::atomic<std::uint64_t> graphs_gone_{0};
  std::atomic<std::uint8_t> word_{0};
  std::atomic<std::uint32_t> pins_{0};
  bool held_by_graph_ = false;
};

}  // namespace cgdebug::capture
