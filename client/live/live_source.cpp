#include "client/live/live_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "client/live/messages.h"
#include "client/live/probe.h"
#include "client/live/sessions.h"
#include "client/live/status.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/wire/message_fields.h"

namespace cgdebug::live {
namespace {

using source::Key;
using source::Slot;
using source::Snapshot;
using source::Values;

class LiveSource : public source::Source {
 public:
  LiveSource(client::Client& client, std::vector<Session> known)
      : client_(client), known_(std::move(known)) {}

  // `shown`: how many snapshots the session's probes that the daemon shows have produced.
  void AddSession(const Session& session, std::uint64_t shown) {
    labels_.push_back(session.label);
    jobs_.push_back(session);
    is_alive_ = is_alive_ || session.state == SessionState::kAlive;
    head_ += fmt::format("{}job {} ({}) {}, replay {}{}", head_.empty() ? "" : "\n", session.label,
                         session.key, StateInWords(session), session.replay,
                         session.step >= 0 ? fmt::format(", step {}", session.step) : "");
    ending_ = NameOf(session.state);
    const layout::Counters& counters = session.counters;
    if (counters.lost_released > 0) {
      unread_.push_back(fmt::format("{} snapshots that job {} gave up unread, to make room",
                                    counters.lost_released, session.label));
    }
    if (counters.produced > shown + counters.lost_released) {
      unread_.push_back(fmt::format(
          "{} snapshots of job {}, of graphs that are gone and that the daemon no longer shows",
          counters.produced - shown - counters.lost_released, session.label));
    }
  }

  void AddProbe(const Probe& probe) {
    Slot& slot = slots_.emplace_back(probe.slot);
    for (const Session& session : jobs_) {
      if (session.key != probe.session) continue;
      slot.uuid = session.uuid;
      slot.run = session.run_id;
      slot.host = session.hostname;
      slot.world_size = session.world_size;
      slot.restart = session.restart_count;
    }
    live_.push_back({.probe = probe});
  }

  source::Description Describe() const override {
    source::Description description{.path = "live", .kind = "live", .sessions = labels_};
    if (labels_.size() == 1) {
      description.path = labels_.front();
      description.ending = ending_;
    }
    description.head = head_;
    description.unread = unread_;
    description.is_growing = is_alive_;
    const std::vector<JobRanks> known = GroupByJob(known_);
    for (const JobRanks& job : GroupByJob(jobs_)) {
      if (!job.has_ranks()) continue;
      // A rank that was not asked for is not missing.
      const auto all = std::ranges::find(known, job.name, &JobRanks::name);
      const std::string missing = MissingRanksText(*all);
      description.ranks += fmt::format("{}ranks {}{}", description.ranks.empty() ? "" : "\n",
                                       RanksText(job), missing.empty() ? "" : ": " + missing);
    }
    return description;
  }
  const std::vector<Slot>& slots() const override { return slots_; }

  // Leaves out snapshots that came after the counters were asked for: the account lacks them.
  Result<std::vector<Key>> Keys(std::size_t slot) override {
    Live& live = live_[slot];
    if (live.keys) return *live.keys;
    std::vector<Key> keys;
    v1::HistoryRequest request;
    request.set_session(live.probe.session);
    request.set_slot(static_cast<std::uint32_t>(live.probe.slot.order));
    request.set_last(live.probe.replay);
    bool has_more = live.probe.replay != 0;
    while (has_more) {
      const Result<v1::HistoryReply> reply = client_.History(request);
      if (!reply.ok()) {
        // The daemon has forgotten it since: its account says what is gone.
        if (client_.last_failure() == client::Failure::kNothingMatched) break;
        return reply.error();
      }
      for (const v1::HistoryReply::Entry& entry : reply->entries()) {
        if (!keys.empty() && entry.ordinal() <= keys.back().id) continue;
        keys.push_back({entry.replay(), entry.ordinal(), entry.iteration()});
        live.snapshots[entry.ordinal()] = ToSnapshot(slot, entry);
      }
      has_more = reply->more() && !keys.empty() && keys.back().id >= request.first_ordinal();
      if (has_more) request.set_first_ordinal(keys.back().id + 1);
    }
    live.keys = keys;
    return keys;
  }

  Result<Snapshot> Get(std::size_t slot, const Key& key) override {
    const Result<std::vector<Key>> keys = Keys(slot);
    if (!keys.ok()) return keys.error();
    const auto known = live_[slot].snapshots.find(key.id);
    if (known != live_[slot].snapshots.end()) return known->second;
    return Error{fmt::format("the daemon no longer keeps {}@{}", SlotText(slots_[slot]),
                             ReplayText(slots_[slot], key))};
  }

  Result<Values> Load(const Snapshot& snapshot) override {
    v1::GetRequest request;
    request.set_session(live_[snapshot.slot].probe.session);
    request.set_probe(slots_[snapshot.slot].probe);
    request.set_slot(static_cast<std::uint32_t>(slots_[snapshot.slot].order));
    request.set_replay(static_cast<std::int64_t>(snapshot.key.replay));
    request.set_iteration(snapshot.key.iteration);
    Result<client::Tensor> tensor = client_.Get(request);
    if (!tensor.ok()) return tensor.error();
    auto payload = std::make_shared<std::string>(std::move(tensor->payload));
    const auto* data = reinterpret_cast<const std::byte*>(payload->data());
    return Values{{data, payload->size()}, payload};
  }

  // The counters say how many snapshots are gone and why; the ordinals of those that are left say
  // where. Which of the missing ones were never read is not known, so the oldest are assumed.
  std::vector<source::Gap> Gaps() override {
    std::vector<source::Gap> gaps;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const Result<recording::Account> account = AccountOf(slot);
      if (!account.ok()) continue;  // reading its snapshots reports the error
      std::map<std::string, std::uint64_t> left = account->lost;
      std::uint64_t ordinal = 0, replay = 0;
      const std::uint64_t out = slots_[slot].in_body ? 1 : 0;  // see recording::Loss
      const auto miss = [&](std::uint64_t count, std::uint64_t before_replay) {
        for (const layout::LossCause kind :
             {layout::LossCause::kOverwritten, layout::LossCause::kCorrupted,
              layout::LossCause::kNoMemory, layout::LossCause::kNotKept,
              layout::LossCause::kAtDeath}) {
          const std::string cause(ToText(kind));
          std::uint64_t& lost = left[cause];
          const std::uint64_t here = std::min(count, lost);
          if (here > 0) {
            gaps.push_back({slot, here, replay - std::min(replay, out), before_replay, cause});
          }
          lost -= here;
          count -= here;
        }
      };
      for (const Key& key : *live_[slot].keys) {
        miss(key.id - ordinal - 1, key.replay + out);
        ordinal = key.id;
        replay = key.replay;
      }
      miss(UINT64_MAX, 0);
    }
    return gaps;
  }

  Result<recording::Account> AccountOf(std::size_t slot) override {
    const Result<std::vector<Key>> keys = Keys(slot);
    if (!keys.ok()) return keys.error();
    const layout::Counters& counters = live_[slot].probe.counters;
    recording::Account account;
    account.kept = keys->size();
    account.produced = std::max(counters.produced + counters.lost_at_death, account.kept);
    const auto lose = [&](layout::LossCause cause, std::uint64_t count) {
      if (count > 0) account.lost[std::string(ToText(cause))] += count;
    };
    lose(layout::LossCause::kOverwritten, counters.lost_overwritten);
    lose(layout::LossCause::kAtDeath, counters.lost_at_death);
    lose(layout::LossCause::kCorrupted, counters.lost_damaged);
    lose(layout::LossCause::kNoMemory, counters.lost_no_memory);
    lose(layout::LossCause::kNotKept,
         counters.consumed - std::min(counters.consumed, account.kept));
    const std::uint64_t known = account.kept + account.lost_count();
    account.unread = account.produced - std::min(account.produced, known);
    return account;
  }

  std::vector<source::Finding> Findings() override {
    std::vector<source::Finding> findings;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const Probe& probe = live_[slot].probe;
      const auto add = [&](source::Finding::Kind kind, const std::optional<FirstNonfinite>& first) {
        if (!first) return;
        findings.push_back({.slot = slot,
                            .kind = kind,
                            .replay = first->replay,
                            .serial = first->serial,
                            .step = first->step,
                            .count = first->count});
      };
      add(source::Finding::Kind::kNan, probe.first_nan);
      add(source::Finding::Kind::kInf, probe.first_inf);
      if (!probe.verdict || probe.verdict->state != layout::VerdictState::kFail) continue;
      findings.push_back({.slot = slot,
                          .kind = source::Finding::Kind::kMismatch,
                          .replay = probe.verdict->first_failed_replay,
                          .text = probe.verdict->text});
    }
    return findings;
  }

 private:
  struct Live {
    Probe probe;
    std::optional<std::vector<Key>> keys = {};
    std::map<std::uint64_t, Snapshot> snapshots = {};  // by ordinal
  };

  static std::string StateInWords(const Session& session) {
    if (session.state == SessionState::kAlive) return fmt::format("is alive (pid {})", session.pid);
    return fmt::format("{} (pid {}, {} ago)",
                       session.state == SessionState::kDied ? "died" : "has exited", session.pid,
                       FormatDuration(SecondsSince(session.ended_ns)));
  }

  Snapshot ToSnapshot(std::size_t slot, const v1::HistoryReply::Entry& entry) const {
    Snapshot snapshot{.slot = slot,
                      .key = {entry.replay(), entry.ordinal(), entry.iteration()},
                      .serial = entry.serial(),
                      .step = entry.step(),
                      .timestamp_ns = entry.timestamp_ns(),
                      .has_values = entry.has_values(),
                      .payload_bytes = slots_[slot].payload_bytes,
                      .stats = FieldsOf<numerics::Stats>(entry.stats())};
    if (entry.unchanged()) snapshot.same_as = entry.ordinal() - 1;
    return snapshot;
  }

  client::Client& client_;
  std::vector<std::string> labels_;
  std::string head_;
  std::string ending_;
  std::vector<std::string> unread_;
  std::vector<Session> known_;  // to the daemon
  std::vector<Session> jobs_;   // of those, the ones that are in here
  bool is_alive_ = false;
  std::vector<Slot> slots_;
  std::vector<Live> live_;  // of each slot
};

}  // namespace

Result<std::unique_ptr<source::Source>> OpenLive(client::Client& client,
                                                 const std::string& session) {
  // Let the daemon read what jobs did just now, and notice which of them have ended.
  [[maybe_unused]] const auto synced = Sync(client);
  const Result<std::vector<Session>> sessions = ListSessions(client);
  if (!sessions.ok()) return sessions.error();
  const Session* newest = nullptr;
  for (const Session& one : *sessions) {
    if (!MatchesSession(one, session)) continue;
    if (newest == nullptr || one.created_ns > newest->created_ns) newest = &one;
  }
  if (newest == nullptr) {
    return Error{session.empty() ? "no job of this user has a probe"
                                 : "no session '" + session + "'"};
  }
  const Result<std::vector<Probe>> probes = ListProbes(client);
  if (!probes.ok()) return probes.error();
  auto live = std::make_unique<LiveSource>(client, *sessions);
  std::set<std::string> keys;
  for (const Session& one : *sessions) {
    const bool is_same_job =
        &one == newest || (!one.run_id.empty() && session.empty() && one.run_id == newest->run_id &&
                           one.restart_count == newest->restart_count);
    if (session.empty() ? !is_same_job : !MatchesSession(one, session)) continue;
    std::uint64_t shown = 0;
    for (const Probe& probe : *probes) {
      if (probe.session == one.key) shown += probe.counters.produced;
    }
    live->AddSession(one, shown);
    keys.insert(one.key);
  }
  for (const Probe& probe : *probes) {
    if (keys.contains(probe.session)) live->AddProbe(probe);
  }
  if (live->slots().empty()) return Error{"session " + newest->label + " has no probe"};
  return std::unique_ptr<source::Source>(std::move(live));
}

}  // namespace cgdebug::live
