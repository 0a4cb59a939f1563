#include "daemon/ingest/gpu_clock.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace cgdebug::ingest {
namespace {

// A leaf reads its clock before its values have crossed the link, and the daemon sees the commit
// after that. So a lag that is wrong by less than this stays as it is.
constexpr std::int64_t kSlackNs = 2'000'000;
// The clock of an H200 drifts by 8.7 us a second: it needs a new lag every four minutes, and these
// last ten days.
constexpr std::size_t kMostLags = 4096;

// Sums of two such numbers do not overflow.
bool IsPossible(std::int64_t timestamp_ns) {
  return timestamp_ns > 0 && timestamp_ns < std::int64_t{1} << 61;
}

}  // namespace

void GpuClock::See(std::int64_t timestamp_ns, std::optional<std::int64_t> absent_ns,
                   std::int64_t seen_ns) {
  if (!IsPossible(timestamp_ns)) return;
  newest_ns_ = std::max(newest_ns_, timestamp_ns);
  const std::int64_t most = seen_ns - timestamp_ns;
  // The host's clock may have been set back between the two looks.
  const std::int64_t least = absent_ns ? std::min(*absent_ns - timestamp_ns, most)
                                       : std::numeric_limits<std::int64_t>::min();
  const bool is_first = absent_ns && !known_;
  std::int64_t lag_ns = lags_.empty() ? 0 : lags_.back().lag_ns;
  if (lag_ns + kSlackNs < least) {
    lag_ns = least;
  } else if (lag_ns - kSlackNs > most) {
    lag_ns = most;
  } else if (!is_first) {
    return;
  }
  if (is_first) lags_.clear();
  known_ |= is_first;
  // This look may have found several commits; of a slot it sees the newest alone.
  const std::int64_t from_ns = absent_ns && !is_first && seen_before_ns_ != 0
                                   ? std::min(timestamp_ns, seen_before_ns_ + 1)
                                   : timestamp_ns;
  while (!lags_.empty() && lags_.back().from_ns >= from_ns) lags_.pop_back();
  lags_.push_back({from_ns, lag_ns});
  if (lags_.size() > kMostLags) lags_.pop_front();
}

std::int64_t GpuClock::ToHost(std::int64_t timestamp_ns) const {
  if (!IsPossible(timestamp_ns) || lags_.empty()) return timestamp_ns;
  const auto after = std::ranges::upper_bound(lags_, timestamp_ns, {}, &Lag::from_ns);
  if (after != lags_.begin()) return timestamp_ns + std::prev(after)->lag_ns;
  const auto [from_ns, lag_ns] = lags_.front();
  const double since_set = static_cast<double>(timestamp_ns) - static_cast<double>(set_ns_);
  const double until_seen = static_cast<double>(from_ns) - static_cast<double>(set_ns_);
  const double part = until_seen > 0 ? std::clamp(since_set / until_seen, 0.0, 1.0) : 1.0;
  return timestamp_ns + static_cast<std::int64_t>(part * static_cast<double>(lag_ns));
}

}  // namespace cgdebug::ingest
