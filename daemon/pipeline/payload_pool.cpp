#include "daemon/pipeline/payload_pool.h"

#include <map>
#include <mutex>
#include <utility>

namespace cgdebug::pipeline {
namespace {

constexpr std::size_t kSmallBytes = 64u << 10;  // what the allocator handles well by itself

}  // namespace

class PayloadPool::Spares {
 public:
  explicit Spares(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  std::vector<std::byte> Take(std::size_t bytes) {
    if (bytes < kSmallBytes) return {};
    const std::scoped_lock lock(mutex_);
    auto spare = by_size_.extract(bytes);
    if (spare.empty()) return {};
    bytes_ -= bytes;
    return std::move(spare.mapped());
  }

  void Put(std::vector<std::byte> payload) {
    const std::size_t bytes = payload.size();
    if (bytes < kSmallBytes || bytes > max_bytes_) return;
    const std::scoped_lock lock(mutex_);
    // Drops other sizes in favour of the one in use now.
    while (bytes_ + bytes > max_bytes_) {
      const auto other = by_size_.begin()->first != bytes ? by_size_.begin() : --by_size_.end();
      if (other->first == bytes) return;
      bytes_ -= other->first;
      by_size_.erase(other);
    }
    bytes_ += bytes;
    by_size_.emplace(bytes, std::move(payload));
  }

 private:
  const std::size_t max_bytes_;
  std::mutex mutex_;
  std::multimap<std::size_t, std::vector<std::byte>> by_size_;
  std::size_t bytes_ = 0;
};

PayloadPool::PayloadPool(std::size_t max_bytes) : spares_(std::make_shared<Spares>(max_bytes)) {}

std::vector<std::byte> PayloadPool::Take(std::uint64_t bytes) { return spares_->Take(bytes); }

PayloadPtr PayloadPool::Share(std::vector<std::byte> payload) {
  auto owned = std::make_unique<std::vector<std::byte>>(std::move(payload));
  return std::shared_ptr<std::vector<std::byte>>(
      owned.release(), [spares = spares_](std::vector<std::byte>* unused) {
        spares->Put(std::move(*unused));
        delete unused;
      });
}

}  // namespace cgdebug::pipeline
