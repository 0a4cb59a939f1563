// job_process.h: what a job's process has outside its segment: a place in /proc, a directory.
#pragma once

#include <string>

#include "daemon/model/identity.h"

namespace cgdebug::pipeline {

// Whether the job is alive, in this PID namespace, and the process it claims to be. Ask again after
// something of /proc/<pid> was opened: the pid may have been reused in between.
bool IsReachable(const SessionIdentity& job);

// Where the recording that a job asks for goes: where the job says, if the kernel confirms its
// identity. A job in another PID namespace most likely sees other files, and a dead job cannot be
// checked. Their recordings go to $CGDEBUG_DIR of the daemon, else to $XDG_STATE_HOME/cgdebug/runs
// (~/.local/state). `name`: of the recording. Continues a recording that an earlier daemon began
// for this job, wherever it lies.
std::string RecordingPath(const SessionIdentity& job, const std::string& name);

}  // namespace cgdebug::pipeline
