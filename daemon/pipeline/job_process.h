// job_process.h: what a job's process has outside its segment: a place in /proc, a directory.
#pragma once

#include <string>

#include "daemon/pipeline/identity.h"

namespace cgdebug::pipeline {

// Whether the job is alive and in this PID namespace. Ask again after something of /proc/<pid> was
// opened: the pid may have been reused in between.
bool IsReachable(const SessionIdentity& job);

// Where recordings go that the job asks for: where it said, which also holds when it is gone. A job
// in another PID namespace most likely sees other files: then $CGDEBUG_DIR of the daemon, else
// $XDG_STATE_HOME/cgdebug/runs (~/.local/state).
std::string RecordingsDirectory(const SessionIdentity& job);

}  // namespace cgdebug::pipeline
