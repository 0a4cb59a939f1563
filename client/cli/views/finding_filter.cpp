#include "client/cli/views/finding_filter.h"

#include "client/live/messages.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kMaxFindings = 100;

}  // namespace

bool FindingFilter::IsFirst(const std::string& key) {
  if (seen_.contains(key)) return false;
  if (seen_.size() >= kMaxFindings) {
    ++left_out_;
    return false;
  }
  seen_.insert(key);
  return true;
}

bool FindingFilter::Wants(const v1::TailReply& event) {
  const auto key = [](const char* kind, const auto& what) {
    return kind + what.session() + '\n' + what.probe();
  };
  switch (event.event_case()) {
    case v1::TailReply::kSnapshot:
      return live::StatsOf(event.snapshot().stats()).nonfinite() > 0 &&
             IsFirst(key("n", event.snapshot()));
    case v1::TailReply::kCompareFailed:
      return IsFirst(key("c", event.compare_failed()));
    case v1::TailReply::kLoss:
      // Without a probe it is this client that read too slowly: the daemon has the snapshots.
      return !event.loss().probe().empty() && IsFirst(key("l", event.loss()));
    case v1::TailReply::kSessionChange:
      return event.session_change().session().state() == v1::Session::DIED;
    case v1::TailReply::kPrint:
      return true;
    default:
      return false;
  }
}

}  // namespace cgdebug::cli
