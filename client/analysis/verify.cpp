#include "client/analysis/verify.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <thread>

namespace cgdebug::analysis {
namespace {

constexpr std::size_t kMaxThreads = 8;
constexpr std::size_t kWorthAThread = 8;  // snapshots
// If no thread can be started, the calling thread does the work.
constexpr auto kPolicy = std::launch::async | std::launch::deferred;

std::vector<DamagedSnapshot> FindWithin(const source::Source& source,
                                        const std::vector<SnapshotName>& snapshots,
                                        std::size_t begin, std::size_t end) {
  std::vector<DamagedSnapshot> damaged;
  for (std::size_t place = begin; place < end; ++place) {
    const Result<void> good = source.Verify(snapshots[place].slot, snapshots[place].key);
    if (!good.ok()) damaged.push_back({place, good.error().message});
  }
  return damaged;
}

}  // namespace

std::vector<DamagedSnapshot> FindDamaged(const source::Source& source,
                                         const std::vector<SnapshotName>& snapshots) {
  const std::size_t count = snapshots.size();
  const std::size_t threads = std::clamp<std::size_t>(
      std::min<std::size_t>(std::thread::hardware_concurrency(), count / kWorthAThread), 1,
      kMaxThreads);
  // Each thread takes one stretch, so that it reads sequentially.
  std::vector<std::future<std::vector<DamagedSnapshot>>> others;
  for (std::size_t i = 1; i < threads; ++i) {
    others.push_back(std::async(kPolicy, FindWithin, std::cref(source), std::cref(snapshots),
                                i * count / threads, (i + 1) * count / threads));
  }
  std::vector<DamagedSnapshot> damaged = FindWithin(source, snapshots, 0, count / threads);
  for (auto& other : others) {
    std::ranges::move(other.get(), std::back_inserter(damaged));
  }
  return damaged;
}

}  // namespace cgdebug::analysis
