// job_process.h: what a job's process has outside its segment: a place in /proc, a directory.
#pragma once

#include <string>

#include "daemon/model/identity.h"

namespace cgdebug::pipeline {

// Whether the job is alive, in this PID namespace, and who it says. Ask again after something of
// /proc/<pid> was opened: the pid may have been reused in between.
bool IsReachable(const SessionIdentity& job);

// Where the recordings of the job go that it asks for: where it says, if the kernel knows it as who
// it says. A job in another PID namespace most likely sees other files, and one that is dead cannot
// be asked: their recordings go to $CGDEBUG_DIR of the daemon, else to
// $XDG_STATE_HOME/cgdebug/runs (~/.local/state). `name`: of the recording. One that an earlier
// daemon began for this job is gone on with, wherever it lies.
std::string RecordingPath(const SessionIdentity& job, const std::string& name);

}  // namespace cgdebug::pipeline
