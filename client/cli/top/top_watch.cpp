#include "client/cli/top/top_watch.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "daemon/core/base/duration.h"
#include "daemon/core/base/realtime.h"

namespace cgdebug::cli {

Result<void> LookOnce(Context& context, TopModel* model) {
  const auto at = std::chrono::steady_clock::now();  // a look may take long, and not the next one
  Result<live::Status> status = live::GetStatus(context.client(), context.options.session);
  if (!status.ok()) return status.error();
  Result<std::vector<live::Probe>> probes =
      live::ListProbes(context.client(), context.options.session);
  if (!probes.ok()) return probes.error();
  std::erase_if(status->sessions, [&](const live::Session& session) {
    return !context.ranks.Contains(session.rank);
  });
  std::erase_if(*probes,
                [&](const live::Probe& probe) { return !context.ranks.Contains(probe.slot.rank); });
  model->Add(*std::move(status), *std::move(probes), at);
  return {};
}

std::optional<Said> TopWatch::Look() {
  if (is_gone_) {
    client::ConnectOptions connect = context_->MakeConnectOptions();
    connect.start_daemon = false;
    connect.timeout = timeout_;
    if (!context_->client().Connect(connect).ok()) return std::nullopt;
  }
  if (const Result<void> looked = LookOnce(*context_, model_); !looked.ok()) {
    // It does not know the session any more.
    if (context_->client().last_failure() == client::Failure::kNothingMatched) {
      return Said{looked.error().message, /*is_bad=*/true};
    }
    if (!is_gone_) {
      is_gone_ = true;
      gone_ns_ = RealtimeNs();
      is_silent_ = context_->client().last_failure() == client::Failure::kTimeout;
    }
    return std::nullopt;
  }
  std::optional<Said> news;
  const int pid = model_->status().pid;
  if (is_gone_) {
    news = Said{pid == pid_ ? "the daemon answers again"
                            : fmt::format("a daemon runs again (pid {})", pid)};
  }
  pid_ = pid;
  is_gone_ = false;
  for (const TopSession& one : model_->sessions()) {
    if (std::optional<Said> end = EndOf(one.session)) news = std::move(end);
  }
  return news;
}

// Once for each rank.
std::optional<Said> TopWatch::EndOf(const live::Session& session) {
  auto [state, is_new] = states_.try_emplace(session.key, session.state);
  if (is_new || state->second == session.state) return std::nullopt;
  state->second = session.state;
  const std::string who = session.rank < 0
                              ? fmt::format("job {}", session.label)
                              : fmt::format("rank {} ({})", session.rank, session.label);
  const bool died = session.state == live::SessionState::kDied;
  return Said{fmt::format("{} {} at {} {}", who, died ? "died" : "ended", session.replay_word(),
                          session.replay),
              died};
}

std::string TopWatch::GoneText() const {
  return fmt::format(
      "the daemon {} {} ago; this is old. {}", is_silent_ ? "stopped answering" : "ended",
      FormatDuration(live::SecondsSince(gone_ns_)),
      is_silent_ ? "Why: cgdebug-cli daemon logs" : "Type: cgdebug-cli daemon start");
}

}  // namespace cgdebug::cli
