#include "daemon/metrics/page.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "daemon/core/base/realtime.h"
#include "daemon/model/own_usage.h"
#include "proto/layout/op_log_layout.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::metrics {
namespace {

using pipeline::SessionRecord;
using pipeline::SessionState;
using pipeline::SlotRecord;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr std::size_t kSlotsAtATime = 4096;

const double kStartedAt = static_cast<double>(RealtimeNs()) * 1e-9;

// Series of one name stand together on a page, in whatever order they are added.
class Page {
 public:
  // `name` is a literal. `total` ends in "_total" and never falls while its labels stay.
  void Count(const char* name, const char* help, Labels labels, double total) {
    Add(MetricType::Counter, name, help, std::move(labels)).counter.value = total;
  }
  void Gauge(const char* name, const char* help, Labels labels, double value) {
    Add(MetricType::Gauge, name, help, std::move(labels)).gauge.value = value;
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  ClientMetric& Add(MetricType type, const char* name, const char* help, Labels labels) {
    const auto [found, is_new] = places_.try_emplace(name, families_.size());
    if (is_new) families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
    ClientMetric& metric = families_[found->second].metric.emplace_back();
    metric.label = std::move(labels);
    return metric;
  }

  std::vector<MetricFamily> families_;
  std::map<std::string_view, std::size_t> places_;  // by name
};

Labels With(Labels labels, const char* name, std::string value) {
  labels.push_back({name, std::move(value)});
  return labels;
}

Labels LabelsOf(const pipeline::SessionIdentity& session) {
  Labels labels = {{"session", session.key}};
  if (session.rank >= 0) labels.push_back({"rank", std::to_string(session.rank)});
  return labels;
}

void AddDaemon(const Model& model, Page* page) {
  page->Gauge("cgdebug_build_info", "The version of cgdebug-daemon; always 1.",
              {{"version", CGDEBUG_VERSION}}, 1);
  page->Gauge("cgdebug_daemon_start_time_seconds", "When the daemon started, since 1970.", {},
              kStartedAt);
  page->Count("cgdebug_daemon_cpu_seconds_total", "Processor time that the daemon took.", {},
              pipeline::CpuSeconds());
  page->Gauge("cgdebug_daemon_resident_memory_bytes",
              "Memory of the daemon, without the rings of the jobs.", {},
              static_cast<double>(pipeline::ResidentBytes()));
  page->Gauge("cgdebug_daemon_value_memory_bytes", "Tensor values that the daemon keeps.", {},
              static_cast<double>(model.store->bytes()));
  page->Gauge("cgdebug_daemon_value_memory_limit_bytes",
              "Tensor values that the daemon may keep (--max-memory).", {},
              static_cast<double>(model.store->max_bytes()));
  page->Gauge("cgdebug_skipped_files",
              "Files of jobs in shared memory that cannot be read; cgdebug-cli status says why.",
              {}, static_cast<double>(model.registry->Skipped().size()));
  struct statvfs shm = {};
  if (statvfs(layout::kShmDirectory, &shm) == 0) {
    const auto unit = static_cast<double>(shm.f_frsize);
    page->Gauge("cgdebug_shm_free_bytes", "Free in /dev/shm, where the rings are.", {},
                static_cast<double>(shm.f_bavail) * unit);
    page->Gauge("cgdebug_shm_size_bytes", "Size of /dev/shm, where the rings are.", {},
                static_cast<double>(shm.f_blocks) * unit);
  }
  std::size_t active = 0;
  std::size_t failed = 0;
  for (const pipeline::RecordingInfo& info : model.recorder->List()) {
    active += info.active ? 1 : 0;
    failed += info.error.empty() ? 0 : 1;
  }
  page->Gauge("cgdebug_recordings_active", "Recordings that the daemon writes now.", {},
              static_cast<double>(active));
  page->Gauge("cgdebug_recordings_failed",
              "Recordings that ended before they should have, among the last of the daemon; "
              "cgdebug-cli record list says why.",
              {}, static_cast<double>(failed));
}

void AddSnapshots(const layout::Counters& counters, const Labels& labels, Page* page) {
  page->Count("cgdebug_snapshots_produced_total", "Snapshots that probes of the job wrote.", labels,
              static_cast<double>(counters.produced));
  page->Count("cgdebug_snapshots_consumed_total", "Snapshots that the daemon read whole.", labels,
              static_cast<double>(counters.consumed));
  page->Count("cgdebug_snapshots_consumed_bytes_total",
              "Tensor values in the snapshots that the daemon read.", labels,
              static_cast<double>(counters.bytes));
  page->Count("cgdebug_snapshots_suppressed_total",
              "Snapshots that cgdebug-cli set kept from being written.", labels,
              static_cast<double>(counters.suppressed));
  const std::array<std::pair<const char*, std::uint64_t>, 5> causes = {{
      {"overwritten", counters.lost_overwritten},
      {"damaged", counters.lost_damaged},
      {"no_memory", counters.lost_no_memory},
      {"released", counters.lost_released},
      {"at_death", counters.lost_at_death},
  }};
  // Those that a dying job half wrote were never produced.
  std::uint64_t gone = counters.consumed;
  for (const auto& [cause, lost] : causes) {
    page->Count("cgdebug_snapshots_lost_total", "Snapshots that nobody will see, by why.",
                With(labels, "cause", cause), static_cast<double>(lost));
    if (std::string_view(cause) != "at_death") gone += lost;
  }
  page->Gauge("cgdebug_snapshots_unread", "Snapshots that wait in the rings for the daemon.",
              labels, static_cast<double>(counters.produced - std::min(counters.produced, gone)));
  page->Count("cgdebug_waits_total", "How often the job waited for room in a ring.", labels,
              static_cast<double>(counters.waits));
  page->Count("cgdebug_wait_seconds_total", "How long the job waited for room in rings.", labels,
              static_cast<double>(counters.wait_ns) * 1e-9);
  page->Count("cgdebug_device_comparisons_passed_total",
              "Comparisons that passed on the GPU, which write no snapshot.", labels,
              static_cast<double>(counters.passed));
}

void AddSession(const SessionRecord& record, const Labels& labels, Page* page) {
  const pipeline::SessionIdentity& session = *record.session;
  Labels info = With(labels, "label", session.label);
  info.push_back({"run_id", session.run_id});
  info.push_back({"hostname", session.hostname});
  info.push_back({"pid", std::to_string(session.pid)});
  page->Gauge("cgdebug_session_info", "Which job a session is; always 1.", std::move(info), 1);
  page->Gauge("cgdebug_session_alive", "1 while the job lives.", labels,
              record.state == SessionState::kAlive ? 1 : 0);
  page->Gauge("cgdebug_session_died", "1 if the job ended without closing its probes.", labels,
              record.state == SessionState::kDied ? 1 : 0);
  if (record.facts.step >= 0) {
    page->Gauge("cgdebug_session_step", "The step that the job set last (cgdebug.step).", labels,
                static_cast<double>(record.facts.step));
  }
  page->Count("cgdebug_session_replays_total",
              "Replays of the graph of the job that was replayed most often.", labels,
              static_cast<double>(record.replay));
  page->Gauge("cgdebug_session_probes", "Probes of the job.", labels,
              static_cast<double>(record.probes.all));
  page->Gauge("cgdebug_session_calls", "Calls of probes in captured graphs, or eager.", labels,
              static_cast<double>(record.slot_count));
  page->Gauge("cgdebug_session_shm_bytes", "Shared memory that the job's rings take.", labels,
              static_cast<double>(record.facts.shm_bytes));
  page->Gauge("cgdebug_session_device_bytes", "Device memory that the job's probes take.", labels,
              static_cast<double>(record.facts.device_bytes));
  page->Gauge("cgdebug_session_nonfinite_probes",
              "Probes that saw a NaN or Inf in any replay, masks aside.", labels,
              static_cast<double>(record.probes.nonfinite));
  page->Gauge("cgdebug_session_failed_probes", "Probes with a comparison that failed.", labels,
              static_cast<double>(record.probes.failed));
  page->Count(
      "cgdebug_session_replicas_compared_total",
      "Snapshots of tensors that must be equal over ranks which were compared with those of "
      "other ranks on this machine.",
      labels, static_cast<double>(record.replicas.compared));
  page->Count("cgdebug_session_replicas_different_total",
              "Of these, the ones that are not what most ranks have, or on which no two agree.",
              labels, static_cast<double>(record.replicas.different));
  page->Count("cgdebug_session_replicas_close_total",
              "Likewise, but within the tolerance of an all-reduce.", labels,
              static_cast<double>(record.replicas.close));
  page->Count("cgdebug_session_replicas_incomplete_total",
              "Snapshots that a rank of this machine lacked, or sent too late to be compared.",
              labels, static_cast<double>(record.replicas.incomplete));
  AddSnapshots(record.counters, labels, page);
}

// All calls of one probe.
struct ProbeState {
  pipeline::SnapshotPtr newest;  // of all calls; null: none was read
  bool is_nonfinite = false;     // in any replay
  bool has_failed = false;

  void Add(const SlotRecord& slot) {
    is_nonfinite |= slot.firsts.nan.replay != 0 || slot.firsts.inf.replay != 0;
    has_failed |= slot.verdict.state == layout::VerdictState::kFail;
    if (slot.last == nullptr) return;
    if (newest == nullptr || newest->serial < slot.last->serial) newest = slot.last;
  }
};

void AddProbe(const ProbeState& probe, const Labels& labels, Page* page) {
  page->Gauge(
      "cgdebug_probe_nonfinite",
      "1 if a NaN or Inf was in any replay of a call of the probe that has not been released.",
      labels, probe.is_nonfinite ? 1 : 0);
  page->Gauge("cgdebug_probe_failed",
              "1 if a comparison failed in a call of the probe that has not been released.", labels,
              probe.has_failed ? 1 : 0);
  if (probe.newest == nullptr) return;
  const numerics::Stats& stats = probe.newest->stats;
  page->Gauge("cgdebug_probe_replay", "The replay of the newest snapshot that the daemon read.",
              labels, static_cast<double>(probe.newest->replay));
  page->Gauge("cgdebug_probe_snapshot_timestamp_seconds",
              "When the newest snapshot that the daemon read was written, since 1970.", labels,
              static_cast<double>(probe.newest->timestamp_ns) * 1e-9);
  page->Gauge("cgdebug_probe_elements", "Elements of the newest snapshot.", labels,
              static_cast<double>(stats.count));
  page->Gauge("cgdebug_probe_nan_elements", "NaNs in the newest snapshot.", labels,
              static_cast<double>(stats.nan));
  page->Gauge("cgdebug_probe_inf_elements", "Infs of both signs in the newest snapshot.", labels,
              static_cast<double>(stats.pos_inf + stats.neg_inf));
  page->Gauge("cgdebug_probe_min", "Least finite element of the newest snapshot.", labels,
              stats.min);
  page->Gauge("cgdebug_probe_max", "Greatest finite element of the newest snapshot.", labels,
              stats.max);
  page->Gauge("cgdebug_probe_abs_max", "Greatest finite magnitude in the newest snapshot.", labels,
              stats.abs_max);
  page->Gauge("cgdebug_probe_mean", "Mean of the finite elements of the newest snapshot.", labels,
              stats.mean);
  page->Gauge("cgdebug_probe_std",
              "Standard deviation of the finite elements of the newest snapshot.", labels,
              stats.std);
}

// Rows of op logs, of which there are thousands, have no series of their own.
void AddProbes(const pipeline::Registry& registry, const SessionRecord& record,
               const Labels& labels, std::size_t limit, Page* page) {
  std::vector<std::pair<std::string, ProbeState>> probes;  // in order of registration
  std::map<std::string, std::size_t, std::less<>> places;
  std::map<std::string, bool, std::less<>> left_out;
  pipeline::SlotRange range;
  std::vector<SlotRecord> slots;
  do {
    slots = registry.Slots(record.session, range, kSlotsAtATime);
    for (const SlotRecord& slot : slots) {
      range.first = slot.slot->registration.order + 1;
      if (layout::IsNoRow(slot.slot->op)) continue;
      auto place = places.find(slot.slot->probe);
      if (place == places.end()) {
        if (pipeline::IsOfOpLog(*slot.slot) || probes.size() >= limit) {
          left_out.try_emplace(slot.slot->probe);
          continue;
        }
        place = places.emplace(slot.slot->probe, probes.size()).first;
        probes.push_back({slot.slot->probe, {}});
      }
      probes[place->second].second.Add(slot);
    }
  } while (slots.size() == kSlotsAtATime && range.first != 0);
  for (const auto& [name, probe] : probes) AddProbe(probe, With(labels, "probe", name), page);
  page->Gauge("cgdebug_probes_left_out",
              "Probes without series of their own: rows of op logs, and those beyond "
              "--metrics-probes.",
              labels, static_cast<double>(left_out.size()));
}

}  // namespace

bool CanMakePages() { return true; }

std::string MakePage(const Model& model, const Limits& limits) {
  Page page;
  AddDaemon(model, &page);
  std::vector<SessionRecord> sessions = model.registry->Sessions();
  std::map<SessionState, std::size_t> in_state = {
      {SessionState::kAlive, 0}, {SessionState::kExited, 0}, {SessionState::kDied, 0}};
  for (const SessionRecord& record : sessions) ++in_state[record.state];
  for (const auto& [state, name] :
       {std::pair(SessionState::kAlive, "alive"), std::pair(SessionState::kExited, "exited"),
        std::pair(SessionState::kDied, "died")}) {
    page.Gauge("cgdebug_sessions", "Jobs that the daemon knows.", {{"state", name}},
               static_cast<double>(in_state[state]));
  }
  std::stable_sort(sessions.begin(), sessions.end(), [](const auto& a, const auto& b) {
    const bool a_lives = a.state == SessionState::kAlive;
    const bool b_lives = b.state == SessionState::kAlive;
    return a_lives != b_lives ? a_lives : a.ended_ns > b.ended_ns;
  });
  page.Gauge("cgdebug_sessions_left_out",
             "Jobs without series of their own, because there are too many.", {},
             static_cast<double>(sessions.size() - std::min(sessions.size(), limits.sessions)));
  if (sessions.size() > limits.sessions) sessions.resize(limits.sessions);
  for (const SessionRecord& record : sessions) {
    const Labels labels = LabelsOf(*record.session);
    AddSession(record, labels, &page);
    if (record.state != SessionState::kAlive) continue;
    AddProbes(*model.registry, record, labels, limits.probes, &page);
  }
  return page.Text();
}

}  // namespace cgdebug::metrics
