#include "client/cli/run_watch.h"

#include <algorithm>

namespace cgdebug::cli {
namespace {

constexpr std::chrono::milliseconds kRetry{200};
// A job does not wait longer for a view of it.
constexpr std::chrono::milliseconds kSubscribeTimeout{2000};

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

}  // namespace

RunWatch::RunWatch(client::ConnectOptions connect, std::string run_id, v1::TailRequest::Only only,
                   EventPrinter* printer)
    : connect_(std::move(connect)), run_id_(std::move(run_id)), only_(only), printer_(printer) {
  (void)tail_.Connect(connect_).ok();
  thread_ = std::thread([this] { Run(); });
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kSubscribeTimeout, [this] { return subscribed_ || done_; });
}

RunWatch::~RunWatch() { Stop(); }

void RunWatch::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  tail_.Stop();
  if (thread_.joinable()) thread_.join();
}

void RunWatch::Run() {
  v1::TailRequest request;
  request.set_follow(true);
  request.set_only(only_);
  while (true) {
    const Result<client::TailEnd> end = tail_.Tail(request, [this](const v1::TailReply& event) {
      OnEvent(event);
      return true;
    });
    std::unique_lock lock(mutex_);
    // A daemon that knows no session yet may say so instead of waiting for one.
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
    ours_[session.key()] = session.run_id() == run_id_;
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
    ours_[session_key] = event.session_change().session().run_id() == run_id_;
  }
  if (session_key.empty() || !IsOurs(session_key)) return;
  printer_->Print(event);
  if (!event.has_session_change() || !event.session_change().ended()) return;
  const std::lock_guard lock(mutex_);
  ended_.insert(session_key);
  changed_.notify_all();
}

bool RunWatch::WaitUntilPrinted(const std::set<std::string>& session_keys,
                                std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto all_ended = [&] {
    return std::includes(ended_.begin(), ended_.end(), session_keys.begin(), session_keys.end());
  };
  changed_.wait_for(lock, timeout, [&] { return done_ || all_ended(); });
  return all_ended();
}

}  // namespace cgdebug::cli
