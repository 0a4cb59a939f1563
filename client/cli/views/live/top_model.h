// top_model.h: what two looks at the daemon tell together: rates, and how much each probe changed.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/live/probe.h"
#include "client/live/status.h"

namespace cgdebug::cli {

// In a second, between the last two looks.
struct TopRates {
  double replays = 0;  // of all graphs; of eager code, of the probe that ran most often
  double bytes = 0;    // that the daemon read: values and statistics
  double lost = 0;     // snapshots
};

struct TopSession {
  live::Session session;
  std::string job;                // as live::JobRanks::name
  std::optional<TopRates> rates;  // absent: it was there in one look only, or it has ended
};

// From one snapshot of a probe to the one that was the newest a look later.
struct TopChange {
  double from = 0;  // RMS of the finite elements; NaN if there was none
  double to = 0;
  bool became_nonfinite = false;  // there was neither NaN nor Inf

  // 0: nothing changed; 1: from or to 0; infinity: NaN or Inf came, or no element was finite.
  double Size() const;
};

using TopId = std::pair<std::string, std::uint64_t>;  // key of the session, number of the slot

struct TopProbe {
  live::Probe probe;
  std::optional<TopChange> change;  // absent: no new snapshot since the look before
  // The largest of the changes; older ones count less. So rows do not jump with every look.
  double heat = 0;

  TopId id() const { return {probe.session, probe.slot.order}; }
};

class TopModel {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Takes in one look. Jobs that ended before the first look are left out if any is alive; one that
  // ends later stays.
  void Add(live::Status status, std::vector<live::Probe> probes, TimePoint at);

  const live::Status& status() const { return status_; }
  // By job and rank.
  const std::vector<TopSession>& sessions() const { return sessions_; }
  // The probes of those sessions, in graph order.
  const std::vector<TopProbe>& probes() const { return probes_; }
  const TopSession* Find(const std::string& key) const;
  // Between the last two looks; 0 after the first.
  double seconds() const { return seconds_; }
  // CPU time of the daemon between the last two looks, of one core.
  std::optional<double> daemon_load() const { return daemon_load_; }

 private:
  struct Before {
    std::uint64_t replays = 0;
    std::uint64_t replay = 0;
    double rms = 0;
    std::uint64_t nonfinite = 0;
    bool has_stats = false;
    double heat = 0;
  };

  void AddSessions(const std::map<std::string, double>& replays);
  void AddProbes(std::vector<live::Probe> probes);
  std::map<std::string, double> ReplaysOf(const std::vector<live::Probe>& probes) const;

  live::Status status_;
  std::vector<TopSession> sessions_;
  std::vector<TopProbe> probes_;
  std::map<TopId, Before> before_;
  std::set<std::string> seen_;  // keys of the sessions to show, even when they have ended
  std::map<std::string, layout::Counters> counters_before_;
  TimePoint at_ = {};
  double seconds_ = 0;
  std::optional<double> daemon_load_;
};

}  // namespace cgdebug::cli
