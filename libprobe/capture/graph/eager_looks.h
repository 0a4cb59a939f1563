// eager_looks.h: what the callbacks of one eager slot, which are queued on its stream, are about.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

namespace cgdebug::capture {

struct ProbeSlot;

// One use of a probe, on its way from the thread that calls it to the driver's.
struct EagerLook {
  ProbeSlot* slot = nullptr;
  std::uint64_t call = 0;  // that it belongs to (eager_calls.h); 0: the slot counts its own uses
  std::int64_t step = -1;  // when the call began
  EagerLook* next = nullptr;
};

// The looks of a slot: as many as were ever queued at once. Each is used again, because a callback
// may not free it.
class EagerLooks {
 public:
  // Thread: one at a time (the probe table's lock). The acquire pairs with the release of
  // GiveBack(): the callback has read the look.
  EagerLook* Take(const EagerLook& look) {
    if (spare_ == nullptr) spare_ = done_.exchange(nullptr, std::memory_order_acquire);
    EagerLook* taken = spare_ != nullptr ? spare_ : &all_.emplace_back();
    spare_ = taken->next;
    *taken = look;
    return taken;
  }
  // Thread: any, without a lock.
  void GiveBack(EagerLook* look) noexcept {
    look->next = done_.load(std::memory_order_relaxed);
    while (!done_.compare_exchange_weak(look->next, look, std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
  }

 private:
  std::deque<EagerLook> all_;
  EagerLook* spare_ = nullptr;
  std::atomic<EagerLook*> done_{nullptr};
};

}  // namespace cgdebug::capture
