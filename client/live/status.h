// status.h: what the daemon says of itself. Fields as in probe.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/live/recordings.h"
#include "client/live/sessions.h"

namespace cgdebug::live {

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
Result<Status> GetStatus(client::Client& client, const std::string& session = "");

// What the daemon gave up when it forgot all dead jobs.
struct Pruned {
  std::uint32_t sessions = 0;
  std::uint64_t bytes = 0;  // of shared memory that they held

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, "sessions"}, self.sessions);
    visit(layout::Field{2, "bytes"}, self.bytes);
  }
};
// Returns when they are forgotten, or after five seconds.
Result<Pruned> Prune(client::Client& client);

// Ends the daemon, with `force` even while sessions are alive. Returns what the daemon answers.
Result<std::string> Shutdown(client::Client& client, bool force);
// Everything that jobs did before this call is known to the daemon when it returns. False: it took
// too long.
Result<bool> Sync(client::Client& client);

// Whether the daemon's last error says that there is no such session.
bool SaidNoSession(const client::Client& client);

}  // namespace cgdebug::live
