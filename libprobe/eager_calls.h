// eager_calls.h: the eager calls of a process, each with a number.
#pragma once

#include <atomic>
#include <cstdint>

namespace cgdebug {

// A call of a watched model, or a run of an eager op log: what ran in it belongs together, whatever
// the shapes are. 0: none.
struct EagerCall {
  std::uint64_t number = 0;  // in the process, from 1
  std::int64_t step = -1;    // the user's own, as it was when the call began
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
    const Current& current = Here();
    const bool has_call = current.owner == this && current.call.number != 0;
    if (has_call ? current.is_over : is_main_thread) {
      Start(step);
      Here().awaits_model = true;
      Here().is_running = false;
    }
    return Latest();
  }
  // Whether calls of models are followed, so that each thread's latest one is known.
  void SetFollowed(bool is_followed) { is_followed_.store(is_followed, std::memory_order_relaxed); }
  // From now on nothing on this thread belongs to a call.
  void Leave() { Here() = {}; }

  EagerCall Latest() const { return Here().owner == this ? Here().call : EagerCall{}; }
  bool IsRunning() const { return Here().owner == this && Here().is_running; }
  // Latest(), or that of the one thread of the process that has begun calls: autograd runs the
  // backward pass of tensors on a GPU on a thread of its own.
  EagerCall LatestOfJob() const {
    if (Here().owner == this || threads_.load(std::memory_order_acquire) != 1) return Latest();
    while (true) {
      const std::uint64_t number = only_number_.load(std::memory_order_acquire);
      const std::int64_t step = only_step_.load(std::memory_order_acquire);
      if (number != 0 && only_number_.load(std::memory_order_acquire) == number) {
        return {number, step};
      }
    }
  }

 private:
  struct Current {
    const EagerCalls* owner = nullptr;  // a forked child has its own
    EagerCall call;
    bool is_running = false;
    bool awaits_model = false;
    bool has_log = false;
    bool is_over = false;  // another step was set since
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
    // Whoever reads the step of one call and the number of another one reads again.
    only_number_.store(0, std::memory_order_release);
    only_step_.store(step, std::memory_order_release);
    only_number_.store(number, std::memory_order_release);
    if (Here().owner != this) threads_.fetch_add(1, std::memory_order_acq_rel);
    Here() = {.owner = this, .call = {number, step}, .is_running = true};
    return Here().call;
  }
  std::atomic<std::uint64_t> newest_{0};  // Atomic: threads begin calls at the same time
  // The newest call, which says something of other threads if one thread has begun all of them.
  std::atomic<std::uint64_t> only_number_{0};  // Atomic: those read it
  std::atomic<std::int64_t> only_step_{-1};    // Atomic: likewise
  std::atomic<int> threads_{0};                // Atomic: likewise
  std::atomic<bool> is_followed_{false};       // Atomic: a watch sets it while other threads look
};

}  // namespace cgdebug
