// record_lock.h: POSIX record locks on single bytes of a control file: who is alive, and who reads.
//
// The kernel drops a record lock when its process dies, however it dies, and shows it across PID
// namespaces; it is not inherited over fork. Why not boost::interprocess::file_lock: it locks the
// whole file through a descriptor of its own, and two parties must hold a byte each of one file.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace cgdebug::ring {

// Takes the lock on `byte` without waiting; false when another process holds it. Lasts until the
// process ends or closes ANY descriptor of the file.
bool TryLockByte(int fd, std::int64_t byte) noexcept;

// The same, with others that share it; false when another process holds it alone.
bool TryShareByte(int fd, std::int64_t byte) noexcept;

// Whether another process holds the lock on `byte`. The caller's own locks do not count.
bool LockedByOther(int fd, std::int64_t byte) noexcept;

// Who that is: a pid of this process's PID namespace, which the kernel vouches for; 0 when nobody
// holds the lock, or a process that cannot be seen from here.
pid_t LockHolder(int fd, std::int64_t byte) noexcept;

}  // namespace cgdebug::ring
