// eager_calls.h: the eager calls of a process, each with a number.
#pragma once

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdint>

namespace cgdebug {

// A call of a watched model, or a run of an eager op log: what ran in it belongs together, whatever
// the shapes are. 0: none.
struct EagerCall {
  std::uint64_t number = 0;  // in the process, from 1
  std::int64_t step = -1;    // the user's own, as it was when the call began
  std::uint32_t thread = 0;  // that began it, as layout::SlotFacts::thread
};

// Numbers of the threads that begin calls. Lock-free. It outlives the threads.
class CallingThreads {
 public:
  // That of this thread: 1 for the main one, else the lowest one that is free.
  // Thread: any.
  std::uint32_t Here() {
    if (gettid() == getpid()) return kMain;
    static thread_local Own own;
    if (own.owner != this) {  // a forked child has its own
      own.owner = this;
      own.number = Take();
    }
    return own.number;
  }

 private:
  static constexpr std::uint32_t kMain = 1;
  static constexpr std::uint32_t kFirst = 2;
  static constexpr std::uint32_t kReused = 64;
  struct Own {
    CallingThreads* owner = nullptr;
    std::uint32_t number = 0;
    ~Own() {
      if (owner != nullptr) owner->GiveBack(number);
    }
  };
  std::uint32_t Take() {
    std::uint64_t taken = taken_.load();
    while (taken != ~std::uint64_t{0}) {
      const auto place = static_cast<std::uint32_t>(std::countr_one(taken));
      if (taken_.compare_exchange_weak(taken, taken | std::uint64_t{1} << place)) {
        return kFirst + place;
      }
    }
    return kFirst + kReused + beyond_.fetch_add(1);
  }
  void GiveBack(std::uint32_t number) {
    if (number < kFirst + kReused) taken_.fetch_and(~(std::uint64_t{1} << (number - kFirst)));
  }
  std::atomic<std::uint64_t> taken_{0};   // Atomic: threads take and give back at the same time
  std::atomic<std::uint32_t> beyond_{0};  // Atomic: likewise. Those are not used again
};

// Each thread has a call of its own: the one that began last on it. Setting another step ends it
// unless the model runs: what comes then belongs to the call that begins next. Lock-free.
//
// Thread: any.
class EagerCalls {
 public:
  // The model is called. It is this thread's call until the next one begins; IsRunning() until
  // End(). If a log has begun one before the model was called, that is the one.
  EagerCall Begin(std::int64_t step) {
    Current& current = Here();
    if (AwaitsModel()) {
      current.awaits_model = false;
      current.is_running = true;
      return current.call;
    }
    return Start(step);
  }
  // The first row of a run of an op log: of the call that is running, unless a log has it already,
  // because the rows of a call have numbers of one log.
  EagerCall BeginRun(std::int64_t step) {
    if (!(IsRunning() || AwaitsModel()) || Here().has_log) {
      Start(step);
      Here().awaits_model = true;
    }
    Here().has_log = true;
    return Here().call;
  }
  // The model has returned; its backward pass still belongs to the call.
  void End() {
    if (Here().owner == this) Here().is_running = Here().awaits_model = false;
  }
  void EndRun(const EagerCall& call) {
    if (Latest().number == call.number) End();
  }
  // Another step is set.
  void SetStep(std::int64_t step) {
    Current& current = Here();
    if (current.owner == this && !current.is_running) current.is_over = step != current.call.step;
  }
  // The call that a look of the user's own probe belongs to, also between two calls of the model;
  // number 0: none has begun on this thread, or nobody tells where calls begin or end: without
  // steps nobody knows whether the batch of the next call is made. The main thread need not have
  // begun one.
  EagerCall Around(std::int64_t step, bool is_main_thread) {
    if (step < 0 || !is_followed_.load(std::memory_order_relaxed)) return {};
    StartBetween(step, is_main_thread);
    return Latest();
  }
  // A module of a followed model is called, perhaps by itself: where another step was set since the
  // last call, it is of the next one, as what Around() is asked of. After Leave() nobody knows.
  void CallModule(std::int64_t step, bool is_main_thread) {
    if (step < 0 || !is_followed_.load(std::memory_order_relaxed) || Here().has_left) return;
    StartBetween(step, is_main_thread);
  }
  // Whether calls of models are followed, so that each thread's latest one is known.
  void SetFollowed(bool is_followed) { is_followed_.store(is_followed, std::memory_order_relaxed); }
  // Whether this thread has one that is not over: then CallModule() and Around() begin none.
  bool HasCall() const {
    const Current& current = Here();
    return current.owner == this && current.call.number != 0 && !current.is_over;
  }
  // From now on nothing on this thread belongs to a call.
  void Leave() { Here() = {.has_left = true}; }

  EagerCall Latest() const { return Here().owner == this ? Here().call : EagerCall{}; }
  bool IsRunning() const { return Here().owner == this && Here().is_running; }
  // Latest(), or that of the one thread of the process that has begun calls: autograd runs the
  // backward pass of tensors on a GPU on a thread of its own.
  EagerCall LatestOfJob() const {
    if (Here().owner == this || threads_.load(std::memory_order_acquire) != 1) return Latest();
    while (true) {
      const std::uint64_t number = only_number_.load(std::memory_order_acquire);
      const std::int64_t step = only_step_.load(std::memory_order_acquire);
      const std::uint32_t thread = only_thread_.load(std::memory_order_acquire);
      if (number != 0 && only_number_.load(std::memory_order_acquire) == number) {
        return {number, step, thread};
      }
    }
  }

 private:
  struct Current {
    const EagerCalls* owner = nullptr;  // a forked child has its own
    EagerCall call = {};
    bool is_running = false;
    bool awaits_model = false;
    bool has_log = false;
    bool is_over = false;  // another step was set since
    bool has_left = false;
  };
  bool AwaitsModel() const {
    return Here().owner == this && Here().awaits_model && !Here().is_over;
  }
  static Current& Here() {
    static thread_local Current current;
    return current;
  }
  EagerCall Start(std::int64_t step) {
    const std::uint64_t number = newest_.fetch_add(1, std::memory_order_relaxed) + 1;
    const std::uint32_t thread = numbers_.Here();
    // Whoever reads the step of one call and the number of another one reads again.
    only_number_.store(0, std::memory_order_release);
    only_step_.store(step, std::memory_order_release);
    only_thread_.store(thread, std::memory_order_release);
    only_number_.store(number, std::memory_order_release);
    if (Here().owner != this) threads_.fetch_add(1, std::memory_order_acq_rel);
    Here() = {.owner = this, .call = {number, step, thread}, .is_running = true};
    return Here().call;
  }
  // If no call is under way. The next call of the model is that one, unless another step is set
  // before.
  void StartBetween(std::int64_t step, bool is_main_thread) {
    const bool has_begun = Here().owner == this && Here().call.number != 0;
    if (HasCall() || (!has_begun && !is_main_thread)) return;
    Start(step);
    Here().awaits_model = true;
    Here().is_running = false;
  }
  CallingThreads numbers_;
  std::atomic<std::uint64_t> newest_{0};  // Atomic: threads begin calls at the same time
  // The newest call, which says something of other threads if one thread has begun all of them.
  std::atomic<std::uint64_t> only_number_{0};  // Atomic: those read it
  std::atomic<std::int64_t> only_step_{-1};    // Atomic: likewise
  std::atomic<std::uint32_t> only_thread_{0};  // Atomic: likewise
  std::atomic<int> threads_{0};                // Atomic: likewise
  std::atomic<bool> is_followed_{false};       // Atomic: a watch sets it while other threads look
};

}  // namespace cgdebug
