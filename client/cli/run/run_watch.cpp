#include "client/cli/run/run_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "client/cli/run/run_summary.h"
#include "client/cli/views/terminal.h"

namespace cgdebug::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRetry{200};
// The start of the job waits at most this long for the view of it.
constexpr milliseconds kSubscribeTimeout{2000};
constexpr milliseconds kTick{50};
constexpr milliseconds kReorder{100};
constexpr milliseconds kStatusPeriod{250};

}  // namespace

std::string StatusText(const std::vector<live::Session>& sessions, double replays_per_second) {
  RunSummary summary;
  summary.sessions = sessions;
  std::string text;
  if (sessions.empty()) return "no probe has seen a tensor yet";
  if (sessions.size() > 1) text += fmt::format("{} jobs  ", sessions.size());
  if (std::ranges::all_of(sessions, [](const auto& one) { return one.rank >= 0; })) {
    text = fmt::format("{} rank{}  ", sessions.size(), sessions.size() == 1 ? "" : "s");
  }
  text += fmt::format("replay {}  {:.0f} replays/s  lost {}", FormatGrouped(summary.Replays()),
                      replays_per_second, FormatGrouped(summary.LostSnapshots()));
  if (const std::string first = FirstFinding(summary); !first.empty()) text += "  " + first;
  if (summary.FailedProbes() > 0) {
    text += fmt::format("  {} failed a comparison", summary.FailedProbes());
  }
  return text;
}

RunWatch::RunWatch(client::ConnectOptions connect, RunWatchOptions options, EventPrinter* printer)
    : connect_(std::move(connect)),
      options_(std::move(options)),
      line_(STDERR_FILENO),
      held_(options_.stream, options_.prints_reach_terminal, printer) {
  (void)tail_.Connect(connect_).ok();
  thread_ = std::thread([this] { Tail(); });
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kSubscribeTimeout, [this] { return subscribed_ || done_; });
  }
  ticker_ = std::thread([this] { Tick(); });
}

RunWatch::~RunWatch() { Stop(); }

void RunWatch::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  tail_.Stop();
  status_.Stop();
  if (thread_.joinable()) thread_.join();
  if (ticker_.joinable()) ticker_.join();
  line_.Clear();
  held_.Print(Clock::time_point::max());
}

void RunWatch::Tail() {
  live::TailRequest request;
  request.follow = true;
  request.only = options_.stream ? options_.only : live::Only::kFindings;
  request.pages = options_.pages;
  while (true) {
    const Result<client::TailEnd> end =
        live::Tail(tail_, request, [this](const live::Event& event) {
          OnEvent(event);
          return true;
        });
    std::unique_lock lock(mutex_);
    // A daemon that knows no session yet may answer so instead of waiting for one.
    const bool nothing_yet = !end.ok() && tail_.last_failure() == client::Failure::kNothingMatched;
    if (!nothing_yet || changed_.wait_for(lock, kRetry, [this] { return stopping_; })) {
      done_ = true;
      changed_.notify_all();
      return;
    }
  }
}

Result<std::vector<live::Session>> RunWatch::SessionsOf(client::Client* client) const {
  Result<std::vector<live::Session>> sessions = live::ListSessions(*client);
  if (!sessions.ok() && client->Connect(connect_).ok()) sessions = live::ListSessions(*client);
  return sessions;
}

bool RunWatch::IsOurs(const std::string& session_key) {
  const auto known = ours_.find(session_key);
  if (known != ours_.end()) return known->second;
  const Result<std::vector<live::Session>> sessions = SessionsOf(&lookup_);
  if (!sessions.ok()) return false;
  for (const live::Session& session : *sessions) {
    ours_[session.key] = session.run_id == options_.run_id;
  }
  return ours_[session_key];
}

void RunWatch::OnEvent(const live::Event& event) {
  if (event.kind == live::EventKind::kCaughtUp) {
    const std::lock_guard lock(mutex_);
    subscribed_ = true;
    changed_.notify_all();
  }
  const std::string& session_key = event.tensor.session_key;
  if (event.has_session()) ours_[session_key] = event.session.run_id == options_.run_id;
  if (session_key.empty() || !IsOurs(session_key)) return;
  const std::lock_guard lock(mutex_);
  held_.Hold(event);
  if (event.kind != live::EventKind::kSessionEnded) return;
  ended_.insert(session_key);
  changed_.notify_all();
}

void RunWatch::Tick() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kTick, [this] { return stopping_; })) {
    const auto now = Clock::now();
    held_.Print(now - kReorder);
    if (!options_.status_line || !line_.usable() || now - last_status_ < kStatusPeriod) continue;
    lock.unlock();
    ShowStatus(now);
    lock.lock();
  }
}

void RunWatch::ShowStatus(Clock::time_point now) {
  const Result<std::vector<live::Session>> listed = SessionsOf(&status_);
  if (!listed.ok()) return;
  std::vector<live::Session> sessions;
  std::uint64_t replays = 0;
  for (const live::Session& session : *listed) {
    if (session.run_id != options_.run_id || session.created_ns < options_.since_ns) continue;
    replays = std::max(replays, session.replay);
    sessions.push_back(session);
  }
  const double seconds = std::chrono::duration<double>(now - last_status_).count();
  const double rate =
      replays < last_replays_ ? 0 : static_cast<double>(replays - last_replays_) / seconds;
  last_replays_ = replays;
  last_status_ = now;
  const std::string text = fmt::format("{}  {}", options_.run_id, StatusText(sessions, rate));
  const std::lock_guard lock(mutex_);
  if (!stopping_) line_.Show(text);
}

bool RunWatch::WaitUntilSeen(const std::set<std::string>& session_keys,
                             std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto all_ended = [&] {
    return std::includes(ended_.begin(), ended_.end(), session_keys.begin(), session_keys.end());
  };
  changed_.wait_for(lock, timeout, [&] { return done_ || all_ended(); });
  return all_ended();
}

}  // namespace cgdebug::cli
