// process_origin.h: what tells a process from another one that has, or had, the same pid.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace cgdebug::ring {

// Field 22 of /proc/<pid>/stat, the time when the process was started; 0 when it cannot be read,
// because there is no such process.
std::uint64_t StartTicks(pid_t pid);

// The inode of this process's PID namespace; 0 when it is not known.
std::uint64_t OwnPidNamespace();

}  // namespace cgdebug::ring
