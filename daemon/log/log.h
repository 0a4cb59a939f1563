// log.h: the log of the daemon.
//
//   CGDEBUG_LOG=debug            one level for everything
//   CGDEBUG_LOG=+sinks,rpc       sinks at debug, rpc at info, the rest as it was
//   CGDEBUG_LOG=warn,+ingest,-rpc  default warn, ingest at debug, rpc errors only
//
// Messages below their level are not lost at once: the last 64 stay in a ring and are written out
// before the next error. They are formatted for that, so log at debug only what happens to a
// session or a connection. Log what happens to every snapshot at trace, which costs nothing unless
// it is asked for.
#pragma once

#include <spdlog/logger.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/core/base/result.h"

namespace cgdebug {

// The names that a filter may use.
inline constexpr std::array<std::string_view, 4> kLogComponents = {"daemon", "ingest", "sinks",
                                                                   "rpc"};
inline constexpr std::size_t kLogBacktraceMessages = 64;

struct LogOptions {
  std::string filter{};  // as CGDEBUG_LOG, which is used when this is empty
  std::string file{};    // empty = stderr
  std::size_t max_file_bytes = 16u << 20;
  std::size_t max_files = 4;  // the newest and 3 rotated ones
};

// Sets up every component's logger; spdlog's default logger becomes "daemon".
// Thread: once, before other threads log; again replaces the set-up (tests).
// Fails: a filter that names no level or component, a file that cannot be opened.
Result<void> InitLog(const LogOptions& options = {});

// Whether the calling thread is inside a log call, and must not begin another.
bool IsLogging();

// One of kLogComponents; another name does not compile.
class LogComponent {
 public:
  consteval LogComponent(const char* name) : name_(name) {
    for (const std::string_view known : kLogComponents) {
      if (known == name_) return;
    }
    throw "not in kLogComponents";
  }
  std::string_view name() const { return name_; }

 private:
  std::string_view name_;
};

// The logger of a component.
// Thread: any. Lifetime: valid until InitLog is called again.
std::shared_ptr<spdlog::logger> Log(LogComponent component);

}  // namespace cgdebug
