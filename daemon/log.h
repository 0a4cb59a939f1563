// log.h: the log of the daemon and the command line.
//
//   CGDEBUG_LOG=debug            one level for everything
//   CGDEBUG_LOG=+ring,rpc        ring at debug, rpc at info, the rest as it was
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
inline constexpr std::array<std::string_view, 6> kLogComponents = {"daemon", "ingest", "ring",
                                                                   "sinks",  "rpc",    "client"};
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

// The logger of a component; an unknown name gets the default logger.
// Thread: any. Lifetime: valid until InitLog is called again.
std::shared_ptr<spdlog::logger> Log(std::string_view component);

}  // namespace cgdebug
