// counted_graph.h: a graph whose owner counts its launches, and when its memory may be freed.
//
// CUDA tells when a graph is gone if the graph retains a user object (graph_capture.h). But each
// launch of such a graph takes the CPU some microseconds more. If every launch goes through a known
// owner, such as torch.cuda.CUDAGraph, the owner can count launches instead, which costs nothing:
// each leaf stores how many times it has run, and when the owner is gone and all leaves have run as
// many times as there were launches, none will run again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "libprobe/capture/pool_parts.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/graph_layout.h"

namespace cgdebug {

// Lifetime: shared by its owner and the slots of its leaves.
class CountedGraph {
 public:
  using Clock = std::chrono::steady_clock;

  // A leaf stores its count as the last thing that it does. Its earlier stores were issued before,
  // but nothing orders them: a fence would cost each replay a microsecond. They arrive within
  // microseconds of it, so this is ample.
  static constexpr std::chrono::milliseconds kStoresArrive{50};

  enum class End : std::uint8_t {
    kPending,  // there is an owner, or launches have not finished
    kOver,     // no leaf runs any more
    kUnknown,  // somebody else may launch it: what its leaves write to is never freed
  };

  // `table`: of the process that captures it. `order`: its entry in the census; 0 = none.
  // `shown`: counts launches for readers of the census; may be null.
  CountedGraph(const void* table, std::uint64_t id, std::uint64_t order, std::uint64_t* shown)
      : table_(table), id_(id), order_(order), shown_(shown) {}
  CountedGraph(const CountedGraph&) = delete;
  CountedGraph& operator=(const CountedGraph&) = delete;

  const void* table() const { return table_; }
  std::uint64_t id() const { return id_; }  // of its capture
  std::uint64_t order() const { return order_; }

  // --- Thread: any, without a lock.

  // Called before each launch; if it came after, the leaves could be ahead of the count.
  void CountLaunch() noexcept {
    launches_.fetch_add(1, std::memory_order_acq_rel);
    if (shown_ != nullptr) ring::Add(*shown_, std::uint64_t{1});
    if (owner_is_gone_.load(std::memory_order_acquire)) return Escape();  // it is not, after all
    if (escaped_.load(std::memory_order_acquire)) ShowUnknown();
  }
  // That launch failed. Requires: CUDA was not asked to launch the graph, or refused to.
  void TakeBackLaunch() noexcept {
    launches_.fetch_sub(1, std::memory_order_acq_rel);
    if (shown_ != nullptr) ring::Add(*shown_, ~std::uint64_t{0});
    if (escaped_.load(std::memory_order_acquire)) ShowUnknown();
  }
  // From here on there may be launches that nobody counts. Readers of the census see no count that
  // may be too low.
  void Escape() noexcept {
    escaped_.store(true, std::memory_order_release);
    ShowUnknown();
  }
  bool owner_is_gone() const noexcept { return owner_is_gone_.load(std::memory_order_acquire); }
  std::uint64_t launches() const noexcept { return launches_.load(std::memory_order_acquire); }

  // --- Thread: one at a time (the probe table's lock).

  // A leaf that stores at `runs` how many times it has run, from 0. Valid until kOver.
  void AddLeaf(const std::uint64_t* runs) { leaves_.push_back(runs); }
  bool has_leaves() const { return !leaves_.empty(); }
  // Its kernels leave parts of statistics where other graphs of its pool do, unless they have begun
  // elsewhere.
  void SharePartsWith(std::shared_ptr<capture::PoolParts> parts) {
    if (places_.empty()) parts_ = std::move(parts);
  }
  const std::shared_ptr<capture::PoolParts>& parts() const { return parts_; }
  // As PoolParts::Take().
  layout::DeviceStats* TakeParts(std::uint64_t count, int device) {
    return parts_->Take(count, device, &places_[device]);
  }
  void CaptureEnded() noexcept { is_captured_ = true; }
  // The owner has let go: it launches no more. A capture without an end may still become a graph
  // that somebody else owns.
  void OwnerIsGone() noexcept {
    if (!is_captured_) Escape();
    owner_is_gone_.store(true, std::memory_order_release);
  }

  // Looks at what the leaves have stored. kOver and kUnknown are final.
  End Look(Clock::time_point now) {
    if (over_) return End::kOver;
    if (escaped_.load(std::memory_order_acquire)) return End::kUnknown;
    const std::uint64_t launched = launches();
    bool all_ran = true;
    for (const std::uint64_t* leaf : leaves_) {
      const std::uint64_t runs = ring::LoadAcquire(*leaf);
      if (runs > launched) {  // not all launches are counted
        Escape();
        return End::kUnknown;
      }
      all_ran &= runs == launched;
    }
    if (!owner_is_gone() || !all_ran) {
      all_ran_since_.reset();
      return End::kPending;
    }
    if (!all_ran_since_) all_ran_since_ = now;
    if (now - *all_ran_since_ < kStoresArrive) return End::kPending;
    over_ = true;
    leaves_.clear();
    return End::kOver;
  }

 private:
  // Behind its owner's end the entry of the census may be another graph's.
  void ShowUnknown() noexcept {
    if (shown_ != nullptr && !owner_is_gone()) {
      ring::StoreRelaxed(*shown_, layout::kUnknownCount);
    }
  }

  const void* const table_;
  const std::uint64_t id_;
  const std::uint64_t order_;
  std::uint64_t* const shown_;
  std::atomic<std::uint64_t> launches_{0};
  std::atomic<bool> owner_is_gone_{false};
  std::atomic<bool> escaped_{false};

  bool is_captured_ = false;
  bool over_ = false;
  std::vector<const std::uint64_t*> leaves_;
  std::shared_ptr<capture::PoolParts> parts_ = std::make_shared<capture::PoolParts>();
  std::map<int, capture::PoolParts::Place> places_;  // by device
  std::optional<Clock::time_point> all_ran_since_;
};

}  // namespace cgdebug
