#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <cstdio>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/views/json.h"
#include "client/live/status.h"
#include "daemon/core/endpoint/autostart.h"
#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/endpoint/runtime_dir.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

constexpr int kStopTimeoutMs = 10'000;

struct DaemonOptions {
  bool follow = false;
  bool force = false;
  bool help = false;
  int lines = 50;
};

// The block of options of a help text.
std::string OptionsIn(const std::string& help) {
  const std::size_t begin = help.find("\n  -");
  if (begin == std::string::npos) return help;
  const std::size_t end = help.find("\n\n", begin);
  return help.substr(begin + 1, end == std::string::npos ? end : end - begin);
}

// Asks the daemon's program, which knows its options.
int HelpOfStart(Context& context, const CLI::App& start) {
  Context::Print(start.help());
  const Result<std::string> daemon = wire::FindDaemon();
  if (!daemon.ok()) return context.Fail(kExitTrouble, daemon.error().message);
  const auto close = [](std::FILE* pipe) { ::pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(
      ::popen((ShellWord(*daemon) + " --help").c_str(), "r"), close);
  if (pipe == nullptr)
    return context.Fail(kExitTrouble, ErrnoError("cannot run " + *daemon).message);
  std::string text;
  char part[4096];
  for (std::size_t bytes = 0; (bytes = std::fread(part, 1, sizeof(part), pipe.get())) > 0;) {
    text.append(part, bytes);
  }
  Context::Print("\nOptions of the daemon, which start passes on:\n" + OptionsIn(text));
  return kExitOk;
}

int RunStart(Context& context, const CLI::App& start, const DaemonOptions& options) {
  if (options.help) return HelpOfStart(context, start);
  client::ConnectOptions connect = context.MakeConnectOptions();
  connect.start_daemon = true;
  connect.daemon_options = context.app->remaining(true);
  std::erase(connect.daemon_options, "--");
  const Result<void> connected = context.client().Connect(connect);
  if (!connected.ok()) return context.Fail(connected.error());
  const bool started = context.client().started_daemon();
  if (!started && !connect.daemon_options.empty()) {
    return context.Fail(kExitTrouble,
                        fmt::format("a daemon runs already (pid {}) and keeps its options. Type: "
                                    "cgdebug-cli daemon stop",
                                    context.client().daemon_pid()));
  }
  if (context.options.json) {
    Context::PrintJson({{"started", started},
                        {"pid", context.client().daemon_pid()},
                        {"version", context.client().daemon_version()},
                        {"socket", context.client().socket()}});
    return kExitOk;
  }
  context.Say(fmt::format("daemon {} (pid {}, {}), socket {}",
                          started ? "started" : "is running already", context.client().daemon_pid(),
                          context.client().daemon_version(), context.client().socket()));
  return kExitOk;
}

// Fails: it still runs at the deadline.
Result<void> WaitUntilGone(const UniqueFd& process, int pid) {
  pollfd wait{process.get(), POLLIN, 0};
  if (::poll(&wait, 1, kStopTimeoutMs) == 1) return {};
  return Error{fmt::format("the daemon (pid {}) still runs after {} s. Type: kill {}", pid,
                           kStopTimeoutMs / 1000, pid)};
}

int RunStop(Context& context, const DaemonOptions& options) {
  client::ConnectOptions connect = context.MakeConnectOptions();
  connect.start_daemon = false;
  client::Client& client = context.client();
  const Result<void> connected = client.Connect(connect);
  if (!connected.ok() && client.last_failure() != client::Failure::kVersion) {
    return context.Fail(connected.error());
  }
  const int pid = client.daemon_pid();
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (connected.ok()) {
    const Result<std::string> said = live::Shutdown(client, options.force);
    if (!said.ok()) return context.Fail(said.error());
    if (!said->empty()) context.Note("cgdebug: " + Printable(*said));
  } else {
    // It speaks another protocol, but the kernel says which process it is and that it is ours.
    ::kill(pid, SIGTERM);
  }
  if (process) {
    const Result<void> gone = WaitUntilGone(process, pid);
    if (!gone.ok()) return context.Fail(kExitTimeout, gone.error().message);
  }
  context.Say(fmt::format("daemon stopped (pid {})", pid));
  return kExitOk;
}

int RunDaemonStatus(Context& context) {
  client::ConnectOptions connect = context.MakeConnectOptions();
  connect.start_daemon = false;
  const Result<void> connected = context.client().Connect(connect);
  if (!connected.ok()) return context.Fail(connected.error());
  const Json json = {{"running", true},
                     {"pid", context.client().daemon_pid()},
                     {"version", context.client().daemon_version()},
                     {"socket", context.client().socket()}};
  if (context.options.json) {
    Context::PrintJson(json);
  } else {
    Context::Print(fmt::format("running  pid {}  {}  socket {}\n", context.client().daemon_pid(),
                               context.client().daemon_version(), context.client().socket()));
    context.Hint("cgdebug-cli status");
  }
  return kExitOk;
}

int RunLogs(Context& context, const DaemonOptions& options, const std::string& socket_path) {
  const std::string path = wire::LogPath(socket_path);
  if (::access(path.c_str(), R_OK) != 0) {
    return context.Fail(kExitNoMatch, fmt::format("no log at {}: a daemon that was started in the "
                                                  "background writes there",
                                                  path));
  }
  const std::string lines = std::to_string(options.lines);
  std::fflush(stdout);
  if (options.follow) {
    ::execlp("tail", "tail", "-n", lines.c_str(), "-F", path.c_str(), nullptr);
  } else {
    ::execlp("tail", "tail", "-n", lines.c_str(), path.c_str(), nullptr);
  }
  return context.Fail(kExitTrouble, ErrnoError("cannot run tail; the log is " + path).message);
}

RunFunction AddVerb(CLI::App& app, const char* name, const char* summary,
                    std::function<int(Context&)> run, CLI::App** verb = nullptr) {
  CLI::App* sub = app.add_subcommand(name, summary);
  if (verb != nullptr) *verb = sub;
  return
      [sub, run = std::move(run)](Context& context) { return sub->parsed() ? run(context) : -1; };
}

}  // namespace

RunFunction AddDaemon(CLI::App& app) {
  auto options = std::make_shared<DaemonOptions>();
  app.require_subcommand(1);
  const auto with_socket = [](auto run) {
    return [run](Context& context) {
      const Result<std::string> path =
          SocketPath(RuntimeEnvironment::OfThisProcess(), context.options.socket);
      if (!path.ok()) return context.Fail(kExitTrouble, path.error().message);
      return run(context, *path);
    };
  };
  CLI::App* start = nullptr;
  CLI::App* stop = nullptr;
  CLI::App* logs = nullptr;
  const auto start_app = std::make_shared<const CLI::App*>();
  std::vector<RunFunction> verbs = {
      AddVerb(
          app, "start", "starts a daemon, unless one is running",
          [options, start_app](Context& context) {
            return RunStart(context, **start_app, *options);
          },
          &start),
      AddVerb(
          app, "stop", "ends the daemon; jobs go on, and their rings keep the last replays",
          [options](Context& context) { return RunStop(context, *options); }, &stop),
      AddVerb(app, "status", "says whether a daemon is running; exit 4 if not", RunDaemonStatus),
      AddVerb(app, "logs", "prints the end of the daemon's log",
              with_socket([options](Context& context, const std::string& path) {
                return RunLogs(context, *options, path);
              }),
              &logs),
      AddVerb(app, "socket", "prints the path of the daemon's socket",
              with_socket([](Context&, const std::string& path) {
                Context::Print(path + "\n");
                return static_cast<int>(kExitOk);
              })),
  };
  *start_app = start;
  start->footer(
      "  cgdebug-cli daemon start --idle-timeout 0 --max-memory 4G\n"
      "  cgdebug-cli daemon start --min-free-disk 10G --log-level debug\n");
  start->allow_extras();
  start->set_help_flag();
  start->add_flag("-h,--help", options->help, "this text, and the daemon's options");
  stop->add_flag("-f,--force", options->force, "even while jobs with probes are alive");
  logs->add_flag("-f,--follow", options->follow, "then follow what is written");
  logs->add_option("-n,--lines", options->lines, "how many lines; 50 by default")
      ->check(WholeNumber(0, INT_MAX))
      ->type_name("N");
  return [verbs](Context& context) {
    for (const RunFunction& verb : verbs) {
      if (const int code = verb(context); code >= 0) return code;
    }
    return static_cast<int>(kExitTrouble);
  };
}

}  // namespace cgdebug::cli
