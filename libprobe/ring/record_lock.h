// record_lock.h: POSIX record locks on single bytes of a control file: who is alive, and who reads.
//
// The kernel drops a record lock when its process dies, in whatever way, and shows it across PID
// namespaces; a record lock is not inherited over fork. Why not boost::interprocess::file_lock: it
// locks the whole file through a descriptor of its own, while here two parties each hold one byte
// of the same file.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace cgdebug::ring {

// Takes the lock on `byte` without waiting; false when another process holds it. Lasts until the
// process ends or closes ANY descriptor of the file.
bool TryLockByte(int fd, std::int64_t byte) noexcept;

// Takes a shared lock on `byte`; false when another process holds it exclusively.
bool TryShareByte(int fd, std::int64_t byte) noexcept;

// Whether another process holds the lock on `byte`. The caller's own locks do not count.
bool LockedByOther(int fd, std::int64_t byte) noexcept;

// The pid of the process that holds it, in this process's PID namespace, as the kernel says; 0 if
// nobody holds it or its holder cannot be seen from here.
pid_t LockHolder(int fd, std::int64_t byte) noexcept;

}  // namespace cgdebug::ring
