// progress.h: the line that a command shows while it works.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace cgdebug::cli {

// "12 000 of 30 000 snapshots read, about 8s more" after so many seconds of reading; without the
// end where it is not known. Requires: read > 0.
std::string HowFarText(std::uint64_t read, std::uint64_t known, double seconds);

// From its second second on, a command that has written nothing yet says on the terminal what it
// does, how long it has done so and how many snapshots it has read. Without a terminal behind
// stderr, or with a dumb one, it says nothing.
//
// Thread: the main thread; one at a time.
class Progress {
 public:
  // `what`: what was typed.
  Progress(bool is_wanted, std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Takes the line away, for good. Whoever writes to the terminal calls it first.
  static void End();

 private:
  void Show();
  void Stop();

  const std::string what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace cgdebug::cli
