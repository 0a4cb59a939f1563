// job_process.h: what /proc says about a job, for as long as it is the same process that wrote its
// segment.
#pragma once

#include <string>

#include "daemon/pipeline/identity.h"

namespace cgdebug::pipeline {

// Whether the job is alive and in this PID namespace. Ask again after something of /proc/<pid> was
// opened: the pid may have been reused in between.
bool IsReachable(const SessionIdentity& job);

// Where recordings of the job go that nobody named: $CGDEBUG_DIR of the job, "runs" in its working
// directory; when it is not reachable, $CGDEBUG_DIR of the daemon or
// $XDG_STATE_HOME/cgdebug/runs (~/.local/state).
std::string RecordingsDirectory(const SessionIdentity& job);

}  // namespace cgdebug::pipeline
