#include "client/cli/live_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "client/cli/session_text.h"
#include "client/cli/snapshot_text.h"

namespace cgdebug::cli {
namespace {

using source::Key;
using source::Slot;
using source::Snapshot;
using source::Values;

class LiveSource : public source::Source {
 public:
  explicit LiveSource(client::Client& client) : client_(client) {}

  void AddSession(const v1::Session& session) {
    labels_.push_back(session.label());
    jobs_.push_back(session);
    is_alive_ = is_alive_ || session.state() == v1::Session::ALIVE;
  }

  void AddProbe(const v1::ProbeInfo& probe) {
    Slot slot;
    slot.probe = probe.name();
    slot.session = probe.session_label();
    slot.device = probe.device();
    slot.site = probe.site();
    slot.shard = probe.shard();
    slot.dtype_name = probe.dtype();
    slot.dtype = DtypeOf(probe.dtype());
    slot.shape = ShapeOf(probe.shape());
    slot.payload_bytes = probe.payload_bytes();
    slot.rank = probe.rank();
    slot.capture_id = probe.capture_id();
    slot.invocation = probe.invocation();
    slot.order = probe.slot();
    slot.graph = probe.graph();
    slots_.push_back(std::move(slot));
    sessions_.push_back(probe.session());
    if (Lost(probe.counters()) > 0) {
      gaps_.push_back({slots_.size() - 1, Lost(probe.counters()), 0, probe.replay() + 1,
                       "lost while the job ran"});
    }
  }

  source::Description Describe() const override {
    source::Description description{.path = "live", .kind = "live", .sessions = labels_};
    if (labels_.size() == 1) description.path = labels_.front();
    description.is_growing = is_alive_;
    for (const JobRanks& job : GroupByJob(jobs_)) {
      if (!job.has_ranks()) continue;
      const std::string missing = MissingRanksText(job);
      description.ranks += fmt::format("{}ranks {}{}", description.ranks.empty() ? "" : "\n",
                                       RanksText(job), missing.empty() ? "" : ": " + missing);
    }
    return description;
  }
  const std::vector<Slot>& slots() const override { return slots_; }

  // The daemon keeps the newest; they are asked for one after another, back from the newest, by
  // their number, so that a new one in between shifts nothing.
  Result<std::vector<Key>> Keys(std::size_t slot) override {
    std::vector<Key> keys;
    for (std::int64_t back = -1;; --back) {
      const Result<client::Tensor> tensor = Ask(slot, back, /*metadata_only=*/true);
      if (!tensor.ok()) {
        if (client_.last_failure() == client::Failure::kNothingMatched) break;
        return tensor.error();
      }
      const std::uint64_t replay = tensor->reply.snapshot().replay();
      if (keys.empty() || replay < keys.back().replay) keys.push_back({replay, replay});
    }
    std::reverse(keys.begin(), keys.end());
    return keys;
  }

  Result<Snapshot> Get(std::size_t slot, const Key& key) override {
    const Result<client::Tensor> tensor =
        Ask(slot, static_cast<std::int64_t>(key.replay), /*metadata_only=*/true);
    if (!tensor.ok()) return tensor.error();
    const v1::Snapshot& snapshot = tensor->reply.snapshot();
    return Snapshot{.slot = slot,
                    .key = key,
                    .serial = snapshot.serial(),
                    .step = snapshot.step(),
                    .timestamp_ns = snapshot.timestamp_ns(),
                    .has_values = !tensor->reply.payload_dropped(),
                    .payload_bytes = snapshot.payload_bytes(),
                    .stats = StatsOf(snapshot.stats())};
  }

  Result<Values> Load(const Snapshot& snapshot) override {
    Result<client::Tensor> tensor =
        Ask(snapshot.slot, static_cast<std::int64_t>(snapshot.key.replay), false);
    if (!tensor.ok()) return tensor.error();
    auto payload = std::make_shared<std::string>(std::move(tensor->payload));
    const auto* data = reinterpret_cast<const std::byte*>(payload->data());
    return Values{{data, payload->size()}, payload};
  }

  std::vector<source::Gap> Gaps() override { return gaps_; }

 private:
  Result<client::Tensor> Ask(std::size_t slot, std::int64_t replay, bool metadata_only) {
    v1::GetRequest request;
    request.set_session(sessions_[slot]);
    request.set_probe(slots_[slot].probe);
    request.set_slot(static_cast<std::uint32_t>(slots_[slot].order));
    request.set_has_slot(true);
    request.set_replay(replay);
    request.set_metadata_only(metadata_only);
    return client_.Get(request);
  }

  client::Client& client_;
  std::vector<std::string> labels_;
  std::vector<v1::Session> jobs_;
  bool is_alive_ = false;
  std::vector<Slot> slots_;
  std::vector<std::string> sessions_;  // of each slot
  std::vector<source::Gap> gaps_;
};

}  // namespace

Result<std::unique_ptr<source::Source>> OpenLive(client::Client& client,
                                                 const std::string& session) {
  v1::SessionsRequest sessions_request;
  sessions_request.set_include_dead(true);
  const Result<v1::SessionsReply> sessions = client.Sessions(sessions_request);
  if (!sessions.ok()) return sessions.error();
  const v1::Session* newest = nullptr;
  for (const v1::Session& one : sessions->sessions()) {
    if (!MatchesSession(one, session)) continue;
    if (newest == nullptr || one.created_ns() > newest->created_ns()) newest = &one;
  }
  if (newest == nullptr) {
    return Error{session.empty() ? "no job of this user has a probe"
                                 : "no session '" + session + "'"};
  }
  auto live = std::make_unique<LiveSource>(client);
  std::set<std::string> keys;
  for (const v1::Session& one : sessions->sessions()) {
    const bool is_same_job = &one == newest || (!one.run_id().empty() && session.empty() &&
                                                one.run_id() == newest->run_id() &&
                                                one.restart_count() == newest->restart_count());
    if (session.empty() ? !is_same_job : !MatchesSession(one, session)) continue;
    live->AddSession(one);
    keys.insert(one.key());
  }
  const Result<v1::ProbesReply> probes = client.Probes({});
  if (!probes.ok()) return probes.error();
  for (const v1::ProbeInfo& probe : probes->probes()) {
    if (keys.contains(probe.session())) live->AddProbe(probe);
  }
  if (live->slots().empty()) return Error{"session " + newest->label() + " has no probe"};
  return std::unique_ptr<source::Source>(std::move(live));
}

}  // namespace cgdebug::cli
