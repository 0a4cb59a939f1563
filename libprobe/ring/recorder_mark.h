// recorder_mark.h: how a job learns, as it starts, that a recording waits for it.
//
// /dev/shm/cgdebug-recorder-<uid> is an empty file. A daemon with a recording that waits for jobs
// yet to come holds a shared record lock on its first byte; the kernel drops the lock when the
// daemon dies. Why a file: the traced process has no socket, and its first snapshots come before a
// daemon has found its segment.
#pragma once

namespace cgdebug::ring {

// The daemon's side.
//
// Thread: one at a time, and one object per process, because the lock belongs to the process.
class RecorderMark {
 public:
  RecorderMark() = default;
  ~RecorderMark() { Drop(); }
  RecorderMark(const RecorderMark&) = delete;
  RecorderMark& operator=(const RecorderMark&) = delete;

  // Fails: false when the file cannot be made, or belongs to another user.
  bool Hold() noexcept;
  // Removes the file when no other daemon holds it.
  void Drop() noexcept;

 private:
  int fd_ = -1;
};

// Whether a daemon of this user holds the mark: at most three system calls.
bool RecorderWaits() noexcept;

}  // namespace cgdebug::ring
