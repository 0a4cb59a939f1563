#include "client/cli/views/live/finding_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "client/analysis/ops/op_log.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kMaxLines = 100;
constexpr std::size_t kMaxLinesOfReplay = 3;

std::string ReplayOf(const source::Tensor& tensor) {
  return fmt::format("{} {}", tensor.slot.graph_id, tensor.snapshot.key.replay);
}

}  // namespace

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
      return WantsPage(event);
    case live::EventKind::kCaughtUp:
      break;
  }
  return false;
}

bool FindingFilter::WantsPage(const live::Event& page) {
  if (page.bad.rows <= page.bad.masks) return false;
  const source::Tensor& tensor = page.tensor;
  const std::uint64_t replay = tensor.snapshot.key.replay;
  Log& log = logs_[{tensor.session_key, tensor.slot.graph_id}];
  const std::optional<analysis::OpText> first = analysis::ParseOpText(page.bad.first_op);
  const bool is_input = first && first->op == "input";
  const bool is_behind = log.replay == replay || (log.has_nan && is_input);
  const bool is_first_nan = page.bad.with_nan > 0 && !log.has_nan;
  log.replay = std::max(log.replay, replay);
  log.has_nan |= page.bad.with_nan > 0;
  if (is_behind && !is_first_nan) return false;
  return IsFirst(fmt::format("p{}\n{} {}\n{}", tensor.session_key, tensor.slot.graph_id,
                             page.bad.with_nan > 0, page.bad.first));
}

bool FindingLines::Shows(const live::Event& event) {
  using enum live::EventKind;
  // These are few, or what the user asked for.
  if (event.kind == kPrint || event.kind == kUnequal || event.kind == kFrozen) return true;
  if (event.kind == kSnapshot) {
    Replay& newest = newest_[event.tensor.session_key];
    if (std::string name = ReplayOf(event.tensor); newest.name != name) {
      newest = {.name = std::move(name)};
    }
    if (newest.shown == kMaxLinesOfReplay) {
      newest.behind.last = event;
      ++newest.behind.count;
      return false;
    }
    if (lines_ < kMaxLines) ++newest.shown;
  }
  if (lines_ == kMaxLines) {
    ++left_out_;
    return false;
  }
  ++lines_;
  return true;
}

std::vector<FindingLines::Behind> FindingLines::TakeBehind(const live::Event* next) {
  std::vector<Behind> taken;
  for (auto& [session, newest] : newest_) {
    if (newest.behind.count == 0) continue;
    const bool goes_on = next != nullptr && (next->tensor.session_key != session ||
                                             ReplayOf(next->tensor) == newest.name);
    if (!goes_on) taken.push_back(std::exchange(newest.behind, {}));
  }
  return taken;
}

}  // namespace cgdebug::cli
