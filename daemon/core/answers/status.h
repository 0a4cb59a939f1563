// status.h: what the daemon says of itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/core/answers/session.h"
#include "daemon/core/recording/recording_writer.h"

namespace cgdebug::answers {

using Recording = recording::RecordingInfo;

// A file that looked like a segment and was refused.
struct Skipped {
  std::string path;
  std::string reason;

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, "path"}, self.path);
    visit(layout::Field{2, "reason"}, self.reason);
  }
};

struct Status {
  static constexpr std::uint32_t kNumber = 2;  // as in reply.h
  std::string version;
  std::int32_t pid = 0;
  std::int64_t started_ns = 0;
  double cpu_seconds = 0;
  std::uint64_t rss_bytes = 0;  // without the jobs' shared memory
  std::string socket;
  std::vector<Session> sessions;
  std::vector<Skipped> skipped;
  std::uint32_t clients = 0;
  std::uint64_t memory_bytes = 0;  // held by the memory sink
  std::uint64_t memory_limit_bytes = 0;
  double idle_timeout_s = 0;
  std::uint64_t shm_free_bytes = 0;  // of /dev/shm
  std::uint64_t shm_total_bytes = 0;
  std::vector<Recording> recordings;  // active ones, and those that ended in trouble

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "version"}, self.version);
    visit(Field{2, "pid"}, self.pid);
    visit(Field{3, "started_ns"}, self.started_ns);
    visit(Field{4, "cpu_seconds"}, self.cpu_seconds);
    visit(Field{5, "rss_bytes"}, self.rss_bytes);
    visit(Field{6, "socket"}, self.socket);
    visit(Field{7, ""}, self.sessions);
    visit(Field{8, ""}, self.skipped);
    visit(Field{9, "clients"}, self.clients);
    visit(Field{10, "memory_bytes"}, self.memory_bytes);
    visit(Field{11, "memory_limit_bytes"}, self.memory_limit_bytes);
    visit(Field{12, "idle_timeout_s"}, self.idle_timeout_s);
    visit(Field{13, ""}, self.shm_free_bytes);
    visit(Field{14, ""}, self.shm_total_bytes);
    visit(Field{15, ""}, self.recordings);
  }
};

// What the daemon gave up when it forgot all dead jobs.
struct Pruned {
  static constexpr std::uint32_t kNumber = 8;  // as in reply.h
  std::uint32_t sessions = 0;
  std::uint64_t bytes = 0;  // of shared memory that they held

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, "sessions"}, self.sessions);
    visit(layout::Field{2, "bytes"}, self.bytes);
  }
};

}  // namespace cgdebug::answers
