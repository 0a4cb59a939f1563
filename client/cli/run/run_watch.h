// run_watch.h: shows what a run does while it runs, on threads of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cgdebug/client.h"
#include "client/cli/run/held_events.h"
#include "client/cli/views/live/event_printer.h"
#include "client/cli/views/live/status_line.h"

namespace cgdebug::cli {

struct RunWatchOptions {
  std::string run_id;
  std::int64_t since_ns = 0;  // sessions before it are of an earlier run with this id
  bool stream = false;        // every event that `only` selects; else only findings
  live::Only only = live::Only::kAll;
  bool pages = false;                  // as live::TailRequest
  bool prints_reach_terminal = false;  // what TensorPrint writes is there already
  bool status_line = false;
};

// Prints through `printer` what the sessions of the run do, and keeps a status line on stderr.
//
// A stream is held back for kReorder (HeldEvents).
class RunWatch {
 public:
  // Returns when the daemon has the subscription: nothing of a job that starts now is missed.
  RunWatch(client::ConnectOptions connect, RunWatchOptions options, EventPrinter* printer);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  // Waits until the end of each of these sessions was seen, at most `timeout`.
  bool WaitUntilSeen(const std::set<std::string>& session_keys, std::chrono::milliseconds timeout);
  // Prints what is held back, clears the status line, ends the threads.
  void Stop();
  // Findings that were too many to show. After Stop().
  std::size_t left_out() const { return held_.left_out(); }

 private:
  using Clock = HeldEvents::Clock;
  void Tail();
  void OnEvent(const live::Event& event);
  bool IsOurs(const std::string& session_key);
  // Connects again if it must.
  Result<std::vector<live::Session>> SessionsOf(client::Client* client) const;
  void Tick();
  void ShowStatus(Clock::time_point now);

  const client::ConnectOptions connect_;
  const RunWatchOptions options_;
  client::Client tail_;
  client::Client lookup_;             // of the tail's thread: whose session is this?
  client::Client status_;             // of the ticking thread
  std::map<std::string, bool> ours_;  // by session key
  StatusLine line_;
  std::uint64_t last_replays_ = 0;
  Clock::time_point last_status_ = Clock::now();
  std::mutex mutex_;  // guards everything below, and what goes to the terminal
  std::condition_variable changed_;
  HeldEvents held_;
  std::set<std::string> ended_;
  bool subscribed_ = false;
  bool stopping_ = false;
  bool done_ = false;
  std::thread thread_;
  std::thread ticker_;
};

// "2 ranks  replay 1 204  310 replays/s  lost 0  first NaN: blk3.attn @37".
std::string StatusText(const std::vector<live::Session>& sessions, double replays_per_second);

}  // namespace cgdebug::cli
