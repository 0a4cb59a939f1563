// StartDaemon() of the public header.
#include <chrono>
#include <string>

#include "cgdebug/probe.h"
#include "libprobe/launch/daemon_start.h"
#include "libprobe/session.h"
#include "libprobe/slots/daemon_setting.h"

namespace cgdebug {
namespace {

constexpr std::chrono::seconds kStartTimeout{10};
constexpr std::chrono::seconds kAttachTimeout{1};

}  // namespace

void StartDaemon() {
  if (DaemonForbidden()) return;
  if (DaemonAlive()) return;
  const std::string program = launch::FindDaemon();
  if (program.empty()) {
    throw ProbeError(
        ErrorKind::kSystem,
        "cgdebug-daemon was not found beside the probe library or on PATH; without it nothing is "
        "printed or compared. Install cgdebug in this environment, or set CGDEBUG_DAEMON");
  }
  // A daemon that hangs must not hang the job.
  const std::string problem = launch::StartDaemon(program, {}, kStartTimeout);
  if (!problem.empty()) {
    throw ProbeError(ErrorKind::kSystem, problem + ". Type: cgdebug-daemon --foreground");
  }
  AwaitDaemon(kAttachTimeout);
}

}  // namespace cgdebug
