#include "client/cli/views/live/top_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "client/live/sessions.h"

namespace cgdebug::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kCooling = 0.8;  // of the heat, in a look

// A daemon that came later may have counted less.
double Difference(std::uint64_t from, std::uint64_t to) {
  return to < from ? 0 : static_cast<double>(to - from);
}

std::uint64_t ReplaysOf(const live::Probe& probe) {
  return std::max(probe.counters.replays, probe.counters.graph_replays);
}

}  // namespace

double TopChange::Size() const {
  if (became_nonfinite || std::isnan(from) != std::isnan(to)) return kInfinity;
  if (std::isnan(from) || from == to) return 0;
  return std::abs(to - from) / std::max(std::abs(from), std::abs(to));
}

const TopSession* TopModel::Find(const std::string& key) const {
  const auto found = std::ranges::find(
      sessions_, key, [](const TopSession& s) -> const auto& { return s.session.key; });
  return found == sessions_.end() ? nullptr : &*found;
}

void TopModel::Add(live::Status status, std::vector<live::Probe> probes, TimePoint at) {
  const bool is_first = at_ == TimePoint();
  seconds_ = is_first ? 0 : std::chrono::duration<double>(at - at_).count();
  at_ = at;
  daemon_load_.reset();
  if (!is_first && status.pid == status_.pid && seconds_ > 0) {
    daemon_load_ = std::max(status.cpu_seconds - status_.cpu_seconds, 0.0) / seconds_;
  }
  status_ = std::move(status);
  for (const live::Session& session : live::Current(status_.sessions)) {
    if (is_first || session.state == live::SessionState::kAlive) seen_.insert(session.key);
  }
  AddSessions(ReplaysOf(probes));
  AddProbes(std::move(probes));
}

// Since the look before, by session. A probe of a graph counts the replays of its graph.
std::map<std::string, double> TopModel::ReplaysOf(const std::vector<live::Probe>& probes) const {
  std::map<std::pair<std::string, std::uint64_t>, double> of_graph;
  for (const live::Probe& probe : probes) {
    const auto before = before_.find({probe.session, probe.slot.order});
    if (before == before_.end()) continue;
    double& most = of_graph[{probe.session, probe.slot.graph_id}];
    most = std::max(most, Difference(before->second.replays, cli::ReplaysOf(probe)));
  }
  std::map<std::string, double> of_session;
  for (const auto& [graph, replays] : of_graph) of_session[graph.first] += replays;
  return of_session;
}

void TopModel::AddSessions(const std::map<std::string, double>& replays) {
  sessions_.clear();
  std::map<std::string, layout::Counters> counters;
  for (const live::JobRanks& job : live::GroupByJob(status_.sessions)) {
    for (const live::Session* session : job.sessions) {
      if (!seen_.contains(session->key)) continue;
      TopSession& one = sessions_.emplace_back(TopSession{*session, job.name, std::nullopt});
      counters[session->key] = session->counters;
      const auto before = counters_before_.find(session->key);
      if (before == counters_before_.end() || seconds_ <= 0) continue;
      if (session->state != live::SessionState::kAlive) continue;
      const auto found = replays.find(session->key);
      one.rates =
          TopRates{.replays = found == replays.end() ? 0 : found->second / seconds_,
                   .bytes = Difference(before->second.bytes, session->counters.bytes) / seconds_,
                   .lost = Difference(before->second.lost(), session->counters.lost()) / seconds_};
    }
  }
  std::ranges::stable_sort(sessions_, {}, [](const TopSession& one) {
    return std::make_tuple(one.session.state != live::SessionState::kAlive, one.job,
                           one.session.rank);
  });
  counters_before_ = std::move(counters);
}

void TopModel::AddProbes(std::vector<live::Probe> probes) {
  std::map<TopId, Before> now;
  std::vector<TopProbe> next;
  next.reserve(probes.size());
  for (live::Probe& probe : probes) {
    if (!seen_.contains(probe.session)) continue;
    TopProbe one{.probe = std::move(probe), .change = std::nullopt, .heat = 0};
    const auto& stats = one.probe.last_stats;
    const auto before = before_.find(one.id());
    if (before != before_.end()) {
      one.heat = before->second.heat * kCooling;
      // Infinity does not cool down.
      if (std::isinf(one.heat)) one.heat = 1;
      if (stats && before->second.has_stats && before->second.replay != one.probe.replay) {
        one.change = TopChange{before->second.rms, stats->rms,
                               stats->nonfinite() > 0 && before->second.nonfinite == 0};
        one.heat = std::max(one.heat, one.change->Size());
      }
    }
    now[one.id()] = {.replays = cli::ReplaysOf(one.probe),
                     .replay = one.probe.replay,
                     .rms = stats ? stats->rms : 0,
                     .nonfinite = stats ? stats->nonfinite() : 0,
                     .has_stats = stats.has_value(),
                     .heat = one.heat};
    next.push_back(std::move(one));
  }
  before_ = std::move(now);
  probes_ = std::move(next);
}

}  // namespace cgdebug::cli
