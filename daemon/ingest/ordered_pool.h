// ordered_pool.h: does work in parallel and takes the results in order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace cgdebug::ingest {

// Without workers everything runs on the calling thread. Idle workers sleep.
class OrderedPool {
 public:
  explicit OrderedPool(std::size_t workers);
  ~OrderedPool();
  OrderedPool(const OrderedPool&) = delete;
  OrderedPool& operator=(const OrderedPool&) = delete;

  std::size_t workers() const { return threads_.size(); }

  // Calls prepare(i) for every i < count, on the workers or here, and commit(i) here, in order,
  // each after its prepare(i). At most two more than there are workers are prepared ahead of their
  // commit.
  // Thread: one at a time.
  void Run(std::size_t count, const std::function<void(std::size_t)>& prepare,
           const std::function<void(std::size_t)>& commit);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable may_prepare_;
  std::condition_variable is_prepared_;
  const std::function<void(std::size_t)>* prepare_ = nullptr;
  std::vector<bool> prepared_;
  std::size_t next_ = 0;   // the next to prepare
  std::size_t limit_ = 0;  // the first that may not be prepared yet
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace cgdebug::ingest
