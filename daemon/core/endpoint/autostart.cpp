#include "daemon/core/endpoint/autostart.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "daemon/core/endpoint/endpoint.h"
#include "libprobe/launch/daemon_start.h"

namespace cgdebug::wire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kRetry{5};
// The daemon that ours found running, and left to serve, may have been about to end.
constexpr milliseconds kStartAgainAfter{300};

Error DidNotComeUp(const std::string& problem, const std::string& socket_path) {
  return Error{problem + "\nlog: " + LogPath(socket_path) +
               "\nTo see it start, type: cgdebug-daemon --foreground"};
}

}  // namespace

Result<std::string> FindDaemon() {
  std::string found = launch::FindDaemon();
  if (!found.empty()) return found;
  std::error_code failure;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", failure).string();
  return Error{std::string(launch::kDaemonName) + " is neither beside " + self +
               " nor on PATH. Install it there, or start it by hand and use --no-spawn"};
}

Result<UniqueFd> ConnectOrStart(const std::string& socket_path, const AutostartOptions& options,
                                bool* started) {
  *started = false;
  Result<UniqueFd> fd = TryConnect(socket_path);
  if (!fd.ok() || *fd) return fd;

  const Result<std::string> program =
      options.executable.empty() ? FindDaemon() : Result<std::string>(options.executable);
  if (!program.ok()) return program.error();
  std::error_code failure;
  const std::string absolute_socket = std::filesystem::absolute(socket_path, failure).string();
  std::vector<std::string> arguments;
  if (!options.find_socket) arguments = {"--socket", absolute_socket};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());

  const auto deadline = steady_clock::now() + options.timeout;
  auto start_again = steady_clock::now();
  while (true) {
    const auto now = steady_clock::now();
    if (now >= start_again) {
      const auto left = std::max(std::chrono::ceil<milliseconds>(deadline - now), milliseconds(1));
      const std::string problem = launch::StartDaemon(*program, arguments, left);
      if (!problem.empty()) return DidNotComeUp(problem, absolute_socket);
      *started = true;
      start_again = steady_clock::now() + kStartAgainAfter;
    }
    fd = TryConnect(options.find_socket ? options.find_socket() : absolute_socket);
    if (!fd.ok() || *fd) return fd;
    if (steady_clock::now() >= deadline) {
      return DidNotComeUp("the daemon accepted no connection within " +
                              std::to_string(options.timeout.count()) + " ms",
                          absolute_socket);
    }
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace cgdebug::wire
