// options.h: the daemon's command line.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "daemon/core/recording/recording_writer.h"
#include "daemon/metrics/export_options.h"

namespace cgdebug {

// Threads that prepare large snapshots: max(min(4, cores / 2), min(8, cores / 4)). The job has the
// other cores.
inline std::size_t DefaultWorkers() {
  const std::size_t cores = std::thread::hardware_concurrency();
  return std::max(std::min<std::size_t>(4, cores / 2), std::min<std::size_t>(8, cores / 4));
}

struct DaemonOptions {
  std::string socket;       // empty: where runtime_dir.h says
  bool is_private = false;  // the user chose the socket
  bool foreground = false;
  bool spawned = false;  // started by a probe or a client: says nothing when all is well
  // 0 = never, also if it exports metrics and nothing else is said.
  std::chrono::milliseconds idle_timeout = std::chrono::minutes(10);
  std::chrono::milliseconds keep_dead = std::chrono::hours(1);
  std::uint64_t max_memory_bytes = std::uint64_t{1} << 30;
  std::size_t max_clients = 64;
  std::optional<std::size_t> workers;  // absent: DefaultWorkers()
  std::uint64_t max_message_bytes = 16u << 20;
  recording::WriterOptions recording;
  metrics::ExportOptions metrics;
  // Ends rather than serve without them. A job that starts a daemon wants its probes read, whether
  // or not the port in its environment is free.
  bool needs_metrics = false;
  std::string log_level;
  std::string log_file;  // empty: stderr with --foreground, else beside the socket
  pid_t exit_with = 0;
};

// What to do once the command line is read.
struct ParsedOptions {
  DaemonOptions options;
  bool done = false;  // --help, --version or an error: end with `exit_code`
  int exit_code = 0;
};

ParsedOptions ParseOptions(int argc, char** argv);

}  // namespace cgdebug
