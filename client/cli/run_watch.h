// run_watch.h: the events of one run, while it runs, on a thread of its own.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "cgdebug/client.h"
#include "client/cli/event_printer.h"

namespace cgdebug::cli {

// Prints through `printer`, on its own thread, what the sessions with `run_id` do.
class RunWatch {
 public:
  // Returns when the daemon has the subscription: nothing of a job that starts now is missed.
  RunWatch(client::ConnectOptions connect, std::string run_id, v1::TailRequest::Only only,
           EventPrinter* printer);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  // Until the end of each of these sessions was printed, or `timeout`.
  bool WaitUntilPrinted(const std::set<std::string>& session_keys,
                        std::chrono::milliseconds timeout);
  // Ends the thread.
  void Stop();

 private:
  void Run();
  void OnEvent(const v1::TailReply& event);
  bool IsOurs(const std::string& session_key);

  const client::ConnectOptions connect_;
  const std::string run_id_;
  const v1::TailRequest::Only only_;
  EventPrinter* printer_;
  client::Client tail_;
  client::Client lookup_;             // whose session is this?
  std::map<std::string, bool> ours_;  // by session key
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> ended_;
  bool subscribed_ = false;
  bool stopping_ = false;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace cgdebug::cli
