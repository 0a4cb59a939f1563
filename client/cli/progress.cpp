#include "client/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "client/cli/views/terminal.h"
#include "client/source/source.h"
#include "daemon/core/base/duration.h"

namespace cgdebug::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kSilence{1000}, kPeriod{250};

Progress* shown = nullptr;

// A terminal that is gone loses the line, and nothing else.
void Write(const std::string& text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string HowFarText(std::uint64_t read, std::uint64_t known, double seconds) {
  if (known <= read) return FormatGrouped(read) + " snapshots read";  // or some are read again
  const double more = seconds * static_cast<double>(known - read) / static_cast<double>(read);
  return fmt::format("{} of {} snapshots read, about {} more", FormatGrouped(read),
                     FormatGrouped(known), FormatDuration(std::ceil(more)));
}

Progress::Progress(bool is_wanted, std::string what) : what_(std::move(what)) {
  shown = this;
  const char* terminal = std::getenv("TERM");
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  if (is_wanted && !is_dumb && ::isatty(STDERR_FILENO) == 1) {
    thread_ = std::thread([this] { Show(); });
  }
}

Progress::~Progress() {
  Stop();
  shown = nullptr;
}

void Progress::End() {
  if (shown != nullptr) shown->Stop();
}

void Progress::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Progress::Show() {
  const Clock::time_point start = Clock::now();
  Clock::time_point reads_since = start;
  std::unique_lock lock(mutex_);
  bool is_shown = false;
  while (!changed_.wait_for(lock, kPeriod, [this] { return is_over_; })) {
    const Clock::time_point now = Clock::now();
    const std::uint64_t read = source::SnapshotsRead();
    if (read == 0) reads_since = now;  // opening a large source takes a while
    if (now - start < kSilence) continue;
    is_shown = true;
    const auto seconds_since = [&](Clock::time_point then) {
      return std::chrono::duration<double>(now - then).count();
    };
    std::string text = FormatDuration(seconds_since(start));
    if (read > 0) {
      text += ", " + HowFarText(read, source::SnapshotsKnown(), seconds_since(reads_since));
    }
    text += "  " + what_;  // last: a long one is cut
    const std::size_t columns = TerminalColumns(STDERR_FILENO);
    Write("\r\x1b[2K\x1b[2m" + CutToColumns(Printable(text), columns) + "\x1b[0m\r");
  }
  if (is_shown) Write("\x1b[2K");
}

}  // namespace cgdebug::cli
