#include "daemon/ingest/ordered_pool.h"

#include <pthread.h>

#include <algorithm>

namespace cgdebug::ingest {

OrderedPool::OrderedPool(std::size_t workers) {
  for (std::size_t i = 0; i < workers; ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), "cgdebug-prepare");
  }
}

OrderedPool::~OrderedPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  may_prepare_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void OrderedPool::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    may_prepare_.wait(lock, [this] { return stopping_ || next_ < limit_; });
    if (stopping_) return;
    const std::size_t index = next_++;
    lock.unlock();
    (*prepare_)(index);
    lock.lock();
    prepared_[index] = true;
    is_prepared_.notify_one();
  }
}

void OrderedPool::Run(std::size_t count, const std::function<void(std::size_t)>& prepare,
                      const std::function<void(std::size_t)>& commit) {
  const std::size_t ahead = threads_.size() + 2;
  std::unique_lock lock(mutex_);
  prepare_ = &prepare;
  prepared_.assign(count, false);
  next_ = 0;
  limit_ = std::min(count, ahead);
  may_prepare_.notify_all();
  for (std::size_t index = 0; index < count; ++index) {
    if (next_ == index) {  // no worker has taken it yet
      ++next_;
      limit_ = std::max(limit_, next_);
      lock.unlock();
      prepare(index);
      lock.lock();
    } else {
      is_prepared_.wait(lock, [&] { return prepared_[index]; });
    }
    lock.unlock();
    commit(index);
    lock.lock();
    limit_ = threads_.empty() ? 0 : std::min(count, index + 1 + ahead);
    if (next_ < limit_) may_prepare_.notify_one();
  }
  limit_ = 0;
  prepare_ = nullptr;
}

}  // namespace cgdebug::ingest
