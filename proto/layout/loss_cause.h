// loss_cause.h: why a snapshot is missing, as the daemon counts it and a recording stores it.
//
// A number never changes its meaning, because recordings hold them. New causes are appended.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace cgdebug::layout {

enum class LossCause : std::uint32_t {
  kOverwritten = 1,  // in the ring, before the daemon read it
  kReleased = 2,     // the job gave the slot up with snapshots unread
  kAtDeath = 3,      // half written when the job ended
  kDisk = 4,         // the disk was full, or a write failed
  kLimit = 5,        // --max-size
  kDaemonGone = 6,   // no daemon was recording
  kDamaged = 7,      // the file is damaged there; found by the reader, never written
  kCorrupted = 8,    // not the bytes that the GPU summed up
  kLeftOut = 9,      // damaged in the recording that this one was copied from
  kValuesGone = 10,  // only the values: the statistics were recorded
  kNoMemory = 11,    // the daemon had no memory to read it
  kNotKept = 12,     // read when it came, and neither in a ring nor in the daemon's memory any more
  kUnread = 13,      // not read in time when the recording was stopped
  kOnDevice = 14,    // the values stayed in device memory: nobody asked in time, or the job is gone
  // Never written, although other probes of the same replay were: a ring in device memory stood
  // still when the replay came by, or the live control had turned the probe off.
  kStoodStill = 15,
};

struct LossCauseInfo {
  LossCause cause;
  std::string_view text;  // of one snapshot or many
};

inline constexpr std::array<LossCauseInfo, 15> kLossCauses = {{
    {LossCause::kOverwritten, "overwritten before it was read"},
    {LossCause::kReleased, "given up unread by the job"},
    {LossCause::kAtDeath, "half written when the job ended"},
    {LossCause::kDisk, "the disk was full or failed"},
    {LossCause::kLimit, "the recording had reached its size"},
    {LossCause::kDaemonGone, "no daemon was recording"},
    {LossCause::kDamaged, "the recording is damaged there"},
    {LossCause::kCorrupted, "damaged on its way: its checksum is wrong"},
    {LossCause::kLeftOut, "damaged in what it was copied from"},
    {LossCause::kValuesGone, "their values were no longer kept, only their statistics"},
    {LossCause::kNoMemory, "the daemon had no memory to read them"},
    {LossCause::kNotKept, "no longer kept"},
    {LossCause::kUnread, "not read in time when the recording was stopped"},
    {LossCause::kOnDevice, "left in the memory of the device"},
    {LossCause::kStoodStill, "not written: the rings stood still, or the probe was off"},
}};

constexpr std::string_view ToText(LossCause cause) {
  for (const LossCauseInfo& info : kLossCauses) {
    if (info.cause == cause) return info.text;
  }
  return "unknown cause";
}

}  // namespace cgdebug::layout
