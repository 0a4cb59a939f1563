// recordings.h: what the daemon writes to the disk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cgdebug/client.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/base/result.h"
#include "daemon/core/recording/recording_writer.h"

namespace cgdebug::live {

using Recording = recording::RecordingInfo;

// Which jobs wait for room in a full ring: those that start after the recording, none, or also
// those that run already.
enum class Lossless : std::uint8_t { kNewJobs, kNever, kAlways };

struct RecordRequest {
  std::string directory;  // absolute; made when it is missing
  std::string session;    // empty: every session, also those that come
  std::vector<std::string> probes;
  std::uint64_t replays = 0;    // of each probe; 0: until it is stopped
  double duration_s = 0;        // 0: until it is stopped
  std::uint64_t align = 0;      // begins at a replay that is a multiple of it; 0: with the next one
  std::uint64_t max_bytes = 0;  // 0: as much as the disk takes
  std::string run_id;           // not empty: the sessions of this run, also those that come
  std::optional<recording::Durability> durability;  // absent: as the daemon was told
  std::uint64_t roll_bytes = 0;                     // of a segment file; 0: as the daemon was told
  Lossless lossless = Lossless::kNewJobs;
  int owner_pid = 0;  // while it lives, the recording does not end with its jobs; 0: none
  std::optional<std::uint64_t> min_free_bytes;  // of the disk; absent: as the daemon was told
  WhichSlots which;
};

Result<Recording> StartRecording(client::Client& client, const RecordRequest& request);
// `recording`: number or directory; empty: every one that a client started. `job_ended`: the reason
// that is written down.
Result<std::vector<Recording>> StopRecording(client::Client& client, const std::string& recording,
                                             bool job_ended = false);
Result<std::vector<Recording>> ListRecordings(client::Client& client);
// Writes the newest snapshots that are left; `last`: how many of each probe, 0: all.
Result<Recording> Freeze(client::Client& client, const std::string& session,
                         const std::string& directory, const std::vector<std::string>& probes,
                         std::uint64_t last, std::uint64_t max_bytes = 0);

}  // namespace cgdebug::live
