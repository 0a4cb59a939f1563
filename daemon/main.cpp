// cgdebug-daemon; options.cpp lists its options.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/core/base/terminate.h"
#include "daemon/core/endpoint/daemon_mark.h"
#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/endpoint/runtime_dir.h"
#include "daemon/daemon.h"
#include "daemon/detach.h"
#include "daemon/instance.h"
#include "daemon/log/log.h"
#include "daemon/options.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug {
namespace {

constexpr int kExitTrouble = 2;

// The log may be a file, and stderr may be closed.
void LogEnd(const char* message) {
  if (IsLogging()) return;
  Log("daemon")->critical("{}", message);
  spdlog::default_logger()->flush();
}

// Before the constructors of what is linked in, which allocate as well.
[[gnu::constructor(101)]] void BeforeOthers() { EndInsteadOfAborting("cgdebug-daemon", nullptr); }

int Fail(const std::string& text) {
  std::fprintf(stderr, "cgdebug-daemon: %s\n", text.c_str());
  return kExitTrouble;
}

int Refuse(const DaemonOptions& options, const std::string& why, Starter starter) {
  starter.Failed(why);
  return options.foreground ? Fail(why) : kExitTrouble;
}

// Says that another daemon serves, which is not an error, unless this one was to do more. Ranks
// that start one at the same time have the same variables, and one of their daemons exports.
int Leave(const DaemonOptions& options, const std::string& other_socket, Starter starter) {
  const std::string text = "another daemon runs already, on " + other_socket;
  if (options.needs_metrics) {
    return Refuse(options,
                  text +
                      ", and exports only what it was started for. Type: cgdebug-cli "
                      "daemon stop, and start this one again",
                  std::move(starter));
  }
  starter.Ready(text);
  if (options.foreground && !options.spawned) {
    std::fprintf(stderr, "cgdebug-daemon: %s\n", text.c_str());
  }
  return 0;
}

// Claims mark and socket and sets up the log; tells the starter, then serves.
int Serve(const DaemonOptions& options, const std::string& socket_path, Starter starter) {
  signal(SIGXFSZ, SIG_IGN);  // a recording that hits the file size limit gets an error from write()
  signal(SIGPIPE, SIG_IGN);  // if the starter or a job's terminal is gone, write() returns an error
  LogOptions log;
  log.filter = options.log_level;
  log.file = options.log_file;
  if (log.file.empty() && !options.foreground) log.file = wire::LogPath(socket_path);
  std::optional<DaemonMark> mark;
  std::string without_mark;  // why
  if (!options.is_private) {
    Result<std::optional<DaemonMark>> claimed =
        DaemonMark::Claim(layout::kShmDirectory, socket_path);
    if (claimed.ok() && !*claimed) {
      return Leave(options, MarkedSocket(layout::kShmDirectory), std::move(starter));
    }
    if (claimed.ok()) {
      mark.emplace(*std::move(*claimed));
    } else {
      without_mark = claimed.error().message;
    }
  }
  Result<std::optional<Instance>> instance = Instance::Claim(socket_path);
  if (!instance.ok()) return Refuse(options, instance.error().message, std::move(starter));
  if (!*instance) return Leave(options, socket_path, std::move(starter));
  const Result<void> logging = InitLog(log);
  if (!logging.ok()) return Refuse(options, logging.error().message, std::move(starter));
  std::unique_ptr<metrics::Exporter> exporter;
  if (options.metrics.any()) {
    Result<std::unique_ptr<metrics::Exporter>> opened = metrics::Exporter::Open(options.metrics);
    if (!opened.ok() && options.needs_metrics) {
      return Refuse(options, opened.error().message, std::move(starter));
    }
    if (opened.ok()) {
      exporter = *std::move(opened);
    } else {
      Log("daemon")->warn("no metrics: {}", opened.error().message);
    }
  }
  if (!without_mark.empty()) {
    Log("daemon")->warn("found by its socket only: {}", without_mark);
  }
  spdlog::flush_every(std::chrono::seconds(1));
  EndInsteadOfAborting("cgdebug-daemon", &LogEnd);
  starter.Ready("started (pid " + std::to_string(getpid()) + "), socket " + socket_path);
  RunDaemon(options, socket_path, std::move(**instance), std::move(exporter));
  spdlog::shutdown();
  return 0;
}

int Main(int argc, char** argv) {
  ParsedOptions parsed = ParseOptions(argc, argv);
  if (parsed.done) return parsed.exit_code;
  DaemonOptions& options = parsed.options;
  RaiseLimits();
  if (!options.foreground) LeaveJobsShare();
  // A relative path means the directory it was started in, and the daemon leaves it.
  for (std::string* path : {&options.log_file, &options.metrics.textfile}) {
    if (!path->empty()) *path = std::filesystem::absolute(*path);
  }
  const RuntimeEnvironment environment = RuntimeEnvironment::OfThisDaemon();
  options.is_private = IsChosen(environment, options.socket);
  const Result<std::string> socket_path = PrepareSocketPath(environment, options.socket);
  if (!socket_path.ok()) return Fail(socket_path.error().message);
  if (options.foreground) return Serve(options, *socket_path, Starter());

  Result<Detached> detached = Detach();
  if (!detached.ok()) return Fail(detached.error().message);
  if (!detached->is_starter) return Serve(options, *socket_path, std::move(detached->starter));
  if (!detached->ok) return Fail(detached->text);
  if (!options.spawned) std::printf("cgdebug-daemon: %s\n", detached->text.c_str());
  return 0;
}

}  // namespace
}  // namespace cgdebug

int main(int argc, char** argv) {
  try {
    return cgdebug::Main(argc, argv);
  } catch (const std::exception& error) {
    return cgdebug::Fail(error.what());
  }
}
