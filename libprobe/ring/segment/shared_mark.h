// shared_mark.h: what a job can know about the daemons of its user without a socket.
//
// /dev/shm/cgdebug-reader-<uid> and /dev/shm/cgdebug-recorder-<uid> are empty files. Daemons hold a
// shared record lock on the first byte of such a file, which the kernel drops when they die. Why a
// file: the traced process has no socket. Its first snapshots come before a daemon has found its
// segment, and it may end before that as well.
#pragma once

namespace cgdebug::ring {

enum class MarkKind {
  kReader,    // a daemon runs, and will find the segments that are there
  kRecorder,  // a daemon has a recording that also takes future jobs
};

// The daemon's side.
//
// Thread: one at a time. One object of a kind in a process, because its lock is the process's.
class SharedMark {
 public:
  explicit SharedMark(MarkKind kind) : kind_(kind) {}
  ~SharedMark() { Drop(); }
  SharedMark(const SharedMark&) = delete;
  SharedMark& operator=(const SharedMark&) = delete;

  // Fails: false when the file cannot be made, or is another user's.
  bool Hold() noexcept;
  // Removes the file when no other daemon holds it.
  void Drop() noexcept;

 private:
  const MarkKind kind_;
  int fd_ = -1;
};

// Whether another process of this user holds the mark: at most three system calls.
bool IsMarked(MarkKind kind) noexcept;

}  // namespace cgdebug::ring
