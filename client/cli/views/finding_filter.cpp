#include "client/cli/views/finding_filter.h"

#include <fmt/format.h>

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

bool FindingFilter::Wants(const live::Event& event) {
  const source::Tensor& tensor = event.tensor;
  const auto is_first = [&](const char* kind) {
    return IsFirst(kind + tensor.session_key + '\n' + tensor.slot.probe);
  };
  switch (event.kind) {
    case live::EventKind::kSnapshot:
      return tensor.stats.nonfinite() > 0 && is_first("n");
    case live::EventKind::kCompareFailed:
      return is_first("c");
    case live::EventKind::kLoss:
      // Without a probe it is this client that read too slowly: the daemon has the snapshots.
      return !tensor.slot.probe.empty() && is_first("l");
    case live::EventKind::kSessionJoined:
    case live::EventKind::kSessionEnded:
      return event.session.state == live::SessionState::kDied;
    case live::EventKind::kPrint:
    case live::EventKind::kUnequal:
    case live::EventKind::kFrozen:
      return true;
    case live::EventKind::kPage:
      return event.bad.rows > 0 &&
             IsFirst(fmt::format("p{}\n{} {} {}\n{}", tensor.session_key, tensor.slot.graph_id,
                                 event.bad.rows > event.bad.only_neg_inf, event.bad.with_nan > 0,
                                 event.bad.first));
    case live::EventKind::kCaughtUp:
      break;
  }
  return false;
}

}  // namespace cgdebug::cli
