#include "client/cli/run/run_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "client/cli/run/run_summary.h"
#include "client/cli/views/snapshot_text.h"
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
constexpr std::size_t kMaxHeld = 4096;

std::string SessionOf(const v1::TailReply& event) {
  switch (event.event_case()) {
    case v1::TailReply::kSnapshot:
      return event.snapshot().session();
    case v1::TailReply::kPrint:
      return event.print().session();
    case v1::TailReply::kLoss:
      return event.loss().session();
    case v1::TailReply::kCompareFailed:
      return event.compare_failed().session();
    case v1::TailReply::kSessionChange:
      return event.session_change().session().key();
    default:
      return "";
  }
}

bool IsOfSnapshot(const v1::PrintLine& print, const v1::TailReply& event) {
  return event.has_snapshot() && event.snapshot().session() == print.session() &&
         event.snapshot().replay() == print.replay() && event.snapshot().probe() == print.probe();
}

}  // namespace

std::string StatusText(const std::vector<v1::Session>& sessions, double replays_per_second) {
  RunSummary summary;
  summary.sessions = sessions;
  std::string text;
  if (sessions.empty()) return "no probe has seen a tensor yet";
  if (sessions.size() > 1) text += fmt::format("{} jobs  ", sessions.size());
  if (std::ranges::all_of(sessions, [](const auto& one) { return one.rank() >= 0; })) {
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
      printer_(printer),
      line_(STDERR_FILENO) {
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
  PrintHeld(Clock::time_point::max());
}

void RunWatch::Tail() {
  v1::TailRequest request;
  request.set_follow(true);
  request.set_only(options_.stream ? options_.only : v1::TailRequest::FINDINGS);
  while (true) {
    const Result<client::TailEnd> end = tail_.Tail(request, [this](const v1::TailReply& event) {
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

bool RunWatch::IsOurs(const std::string& session_key) {
  const auto known = ours_.find(session_key);
  if (known != ours_.end()) return known->second;
  v1::SessionsRequest request;
  request.set_include_dead(true);
  Result<v1::SessionsReply> reply = lookup_.Sessions(request);
  if (!reply.ok() && lookup_.Connect(connect_).ok()) reply = lookup_.Sessions(request);
  if (!reply.ok()) return false;
  for (const v1::Session& session : reply->sessions()) {
    ours_[session.key()] = session.run_id() == options_.run_id;
  }
  return ours_[session_key];
}

void RunWatch::OnEvent(const v1::TailReply& event) {
  if (event.has_caught_up()) {
    const std::lock_guard lock(mutex_);
    subscribed_ = true;
    changed_.notify_all();
  }
  const std::string session_key = SessionOf(event);
  if (event.has_session_change()) {
    ours_[session_key] = event.session_change().session().run_id() == options_.run_id;
  }
  if (session_key.empty() || !IsOurs(session_key)) return;
  const std::lock_guard lock(mutex_);
  Hold(event);
  if (!event.has_session_change() || !event.session_change().ended()) return;
  ended_.insert(session_key);
  changed_.notify_all();
}

// Requires: mutex_. What TensorPrint wrote belongs to its snapshot. If it is on the terminal, that
// snapshot needs no line of its own.
void RunWatch::Hold(const v1::TailReply& event) {
  // An event that is not a snapshot stays behind the events that came before it.
  auto order = held_.empty() ? decltype(Held::order)() : held_.back().order;
  auto place = held_.end();
  if (event.has_print()) {
    const auto of = std::find_if(held_.rbegin(), held_.rend(), [&](const Held& held) {
      return IsOfSnapshot(event.print(), held.event);
    });
    if (options_.prints_reach_terminal) {
      if (of != held_.rend()) held_.erase(std::next(of).base());
      return;
    }
    if (of != held_.rend()) {
      order = of->order;
      place = of.base();
    }
  } else if (event.has_snapshot()) {
    order = {event.snapshot().serial(), event.snapshot().slot()};
    while (place != held_.begin() && std::prev(place)->order > order) --place;
  }
  if (!options_.stream && !findings_.Wants(event)) return;
  held_.insert(place, {order, Clock::now(), event});
  if (held_.size() > kMaxHeld) PrintHeld(Clock::time_point::max());
}

// Requires: mutex_, or that the threads have ended. Stops at the first that came later.
void RunWatch::PrintHeld(Clock::time_point arrived_before) {
  while (!held_.empty() && held_.front().arrived < arrived_before) {
    printer_->Print(held_.front().event);
    held_.pop_front();
  }
}

void RunWatch::Tick() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kTick, [this] { return stopping_; })) {
    const auto now = Clock::now();
    PrintHeld(now - kReorder);
    if (!options_.status_line || !line_.usable() || now - last_status_ < kStatusPeriod) continue;
    lock.unlock();
    ShowStatus(now);
    lock.lock();
  }
}

void RunWatch::ShowStatus(Clock::time_point now) {
  v1::SessionsRequest request;
  request.set_include_dead(true);
  Result<v1::SessionsReply> reply = status_.Sessions(request);
  if (!reply.ok() && status_.Connect(connect_).ok()) reply = status_.Sessions(request);
  if (!reply.ok()) return;
  std::vector<v1::Session> sessions;
  std::uint64_t replays = 0;
  for (const v1::Session& session : reply->sessions()) {
    if (session.run_id() != options_.run_id || session.created_ns() < options_.since_ns) continue;
    replays = std::max(replays, session.replay());
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
