// commit_timer.h: calls a function now and then, from a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace cgdebug::recording {

// Thread: any, but Start() and Stop() one at a time.
class CommitTimer {
 public:
  ~CommitTimer() { Stop(); }

  // From now on calls `commit` every `interval`, and soon after CallSoon().
  void Start(std::chrono::milliseconds interval, std::function<void()> commit) {
    thread_ = std::thread([this, interval, commit = std::move(commit)] { Run(interval, commit); });
  }
  void CallSoon() {
    const std::scoped_lock lock(mutex_);
    is_due_ = true;
    wake_.notify_all();
  }
  // Waits for a call that has begun; none begins afterwards.
  void Stop() {
    {
      const std::scoped_lock lock(mutex_);
      is_over_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run(std::chrono::milliseconds interval, const std::function<void()>& commit) {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait_for(lock, interval, [this] { return is_due_ || is_over_; });
      if (is_over_) return;
      is_due_ = false;
      lock.unlock();
      commit();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_due_ = false;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace cgdebug::recording
