#include "client/live/live_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "client/analysis/ops/op_log.h"
#include "client/live/ask.h"
#include "client/live/probe.h"
#include "client/live/sessions.h"
#include "client/live/status.h"
#include "daemon/core/base/duration.h"

namespace cgdebug::live {
namespace {

using source::Key;
using source::Slot;
using source::Snapshot;
using source::Values;

void SetProcess(const Session& session, Slot* slot) {
  slot->session = session.label;
  slot->rank = session.rank;
  slot->uuid = session.uuid;
  slot->run = session.run_id;
  slot->host = session.hostname;
  slot->world_size = session.world_size;
  slot->restart = session.restart_count;
}

std::string StateInWords(const Session& session) {
  if (const double seconds = StalledSeconds(session); seconds > 0) {
    return fmt::format("is stalled for {} (pid {})", FormatDuration(seconds), session.pid);
  }
  if (session.state == SessionState::kAlive) return fmt::format("is alive (pid {})", session.pid);
  return fmt::format("{} (pid {}, {} ago)",
                     session.state == SessionState::kDied ? "died" : "has exited", session.pid,
                     FormatDuration(SecondsSince(session.ended_ns)));
}

recording::Account AccountFrom(const layout::Counters& counters, std::uint64_t kept) {
  recording::Account account;
  account.kept = kept;
  account.produced =
      std::max(counters.produced + counters.lost_at_death, kept) + counters.suppressed;
  const auto lose = [&](layout::LossCause cause, std::uint64_t count) {
    if (count > 0) account.lost[std::string(ToText(cause))] += count;
  };
  lose(layout::LossCause::kOverwritten, counters.lost_overwritten);
  lose(layout::LossCause::kAtDeath, counters.lost_at_death);
  lose(layout::LossCause::kCorrupted, counters.lost_damaged);
  lose(layout::LossCause::kNoMemory, counters.lost_no_memory);
  lose(layout::LossCause::kStoodStill, counters.suppressed);
  lose(layout::LossCause::kNotKept, counters.consumed - std::min(counters.consumed, kept));
  const std::uint64_t known = kept + account.lost_count();
  account.unread = account.produced - std::min(account.produced, known);
  return account;
}

// The counters say how many snapshots are gone and why (`left`); the ordinals of those that are
// there say where. Which of the missing ones were never read is not known, so the oldest are
// assumed.
void AddGaps(std::size_t slot, bool in_body, const std::vector<Key>& keys,
             std::map<std::string, std::uint64_t> left, std::vector<source::Gap>* gaps) {
  std::uint64_t ordinal = 0, replay = 0;
  const std::uint64_t out = in_body ? 1 : 0;  // see recording::Loss
  const std::string kept_back(ToText(layout::LossCause::kStoodStill));
  if (const std::uint64_t count = left[kept_back]; count > 0) {  // nobody knows where they lie
    gaps->push_back({slot, count, 0, 0, kept_back});
  }
  const auto miss = [&](std::uint64_t count, std::uint64_t before_replay) {
    if (count == 0) return;
    for (const layout::LossCause kind :
         {layout::LossCause::kOverwritten, layout::LossCause::kCorrupted,
          layout::LossCause::kNoMemory, layout::LossCause::kNotKept, layout::LossCause::kAtDeath}) {
      const std::string cause(ToText(kind));
      std::uint64_t& lost = left[cause];
      const std::uint64_t here = std::min(count, lost);
      if (here > 0) {
        gaps->push_back({slot, here, replay - std::min(replay, out), before_replay, cause});
      }
      lost -= here;
      count -= here;
    }
  };
  for (const Key& key : keys) {
    miss(key.id - ordinal - 1, key.replay + out);
    ordinal = key.id;
    replay = key.replay;
  }
  miss(UINT64_MAX, 0);
}

// The sessions of a source, and what is told of them as a whole.
class LiveJobs {
 public:
  // `known`: to the daemon, also those that are not in the source.
  explicit LiveJobs(std::vector<Session> known) : known_(std::move(known)) {}

  // `shown`: how many snapshots the session's probes that the daemon shows have produced.
  void Add(const Session& session, std::uint64_t shown) {
    labels_.push_back(session.label);
    jobs_.push_back(session);
    if (session.state == SessionState::kAlive) running_.insert(session.uuid);
    const double stalled = StalledSeconds(session);
    stalled_seconds_ = jobs_.size() == 1 ? stalled : std::min(stalled_seconds_, stalled);
    head_ += fmt::format("{}job {} ({}) {}, {} {}{}", head_.empty() ? "" : "\n", session.label,
                         session.key, StateInWords(session), session.replay_word(), session.replay,
                         session.step >= 0 ? fmt::format(", step {}", session.step) : "");
    ending_ = NameOf(session.state);
    if (session.nonfinite_let_go > 0) let_go_[session.uuid] = session.nonfinite_let_go;
    const layout::Counters& counters = session.counters;
    for (const layout::NotSeen& one : session.not_seen) {
      Slot process;
      SetProcess(session, &process);
      not_seen_.push_back({std::move(process), one});
      // Of a job that has ended, answers are about its whole life.
      if (session.state != SessionState::kAlive) not_seen_.back().what.gone = {};
    }
    if (counters.produced > shown + counters.lost_released) {
      unread_.push_back(fmt::format(
          "{} snapshots of job {}, of graphs that are gone and that the daemon no longer shows",
          counters.produced - shown - counters.lost_released, session.label));
    }
  }

  const std::vector<Session>& sessions() const { return jobs_; }

  source::Description Describe() const {
    source::Description description{.path = "live", .kind = "live", .sessions = labels_};
    if (labels_.size() == 1) {
      description.path = labels_.front();
      description.ending = ending_;
    }
    description.head = head_;
    description.unread = unread_;
    description.not_seen = not_seen_;
    description.not_finite_let_go = let_go_;
    description.is_growing = !running_.empty();
    description.running = running_;
    description.stalled_seconds = stalled_seconds_;
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

 private:
  std::vector<std::string> labels_;
  std::string head_;
  std::string ending_;
  std::vector<std::string> unread_;
  std::vector<source::NotSeen> not_seen_;
  std::map<std::string, std::uint64_t> let_go_;
  std::vector<Session> known_;     // to the daemon
  std::vector<Session> jobs_;      // of those, the ones that are in the source
  std::set<std::string> running_;  // uuids of those that are alive
  double stalled_seconds_ = 0;
};

class LiveSource : public source::Source {
 public:
  LiveSource(client::Client& client, LiveJobs jobs) : client_(client), jobs_(std::move(jobs)) {}

  void Expect(std::size_t probes) {
    slots_.reserve(probes);
    live_.reserve(probes);
  }
  void AddProbe(Probe probe) {
    Slot& slot = slots_.emplace_back(probe.slot);
    for (const Session& session : jobs_.sessions()) {
      if (session.key == probe.session) SetProcess(session, &slot);
    }
    const bool is_of_group = !live_.empty() && live_.back().probe.session == probe.session &&
                             live_.back().probe.slot.graph_id == probe.slot.graph_id;
    if (!is_of_group) groups_.push_back({.begin = live_.size()});
    live_.push_back({.probe = std::move(probe), .group = groups_.size() - 1});
    groups_.back().end = live_.size();
  }

  source::Description Describe() const override { return jobs_.Describe(); }
  const std::vector<Slot>& slots() const override { return slots_; }

  // Skips snapshots newer than the counters. Prefetches the next slots too, because op logs are
  // read row after row.
  Result<std::vector<Key>> Keys(std::size_t slot) override {
    if (!live_[slot].keys) {
      if (const Result<void> loaded = LoadKeys(slot); !loaded.ok()) return loaded.error();
    }
    return *live_[slot].keys;
  }

  Result<std::uint64_t> NewestReplay(std::size_t slot) override {
    return live_[slot].keys ? Source::NewestReplay(slot) : live_[slot].probe.replay;
  }

  // Without the other keys, asks for that replay of the whole graph: an op log is read so. Rows are
  // listed while the job runs, so a row may have gained this replay since it was listed.
  Result<std::optional<Key>> Find(std::size_t slot, std::uint64_t replay,
                                  std::optional<std::uint32_t> iteration) override {
    const bool is_body = slots_[slot].in_body && !slots_[slot].counts_calls();
    if (live_[slot].keys || is_body) return Source::Find(slot, replay, iteration);
    if (const Result<void> read = ReadReplay(slot, replay, Width::kReplay); !read.ok()) {
      return read.error();
    }
    std::optional<Key> last;
    for (const Snapshot& snapshot : live_[slot].snapshots) {
      const bool is_meant = !iteration || snapshot.key.iteration == *iteration;
      if (snapshot.key.replay == replay && is_meant) last = snapshot.key;
    }
    return last;
  }

  Result<std::optional<Key>> FindBefore(std::size_t slot, std::uint64_t replay) override {
    if (live_[slot].keys) return Source::FindBefore(slot, replay);
    if (const Result<void> read = ReadReplay(slot, replay, Width::kNeighbours); !read.ok()) {
      return read.error();
    }
    const std::vector<Snapshot>& known = live_[slot].snapshots;
    const auto here = FirstFrom(known, replay);
    return here == known.begin() ? std::nullopt : std::optional(std::prev(here)->key);
  }

  // Ordinals tell: those between the neighbours of the replay, or up to the end, which are not
  // here.
  std::vector<std::size_t> MayLack(const std::vector<std::size_t>& slots,
                                   std::uint64_t replay) override {
    std::vector<std::size_t> lacking;
    for (const std::size_t slot : slots) {
      if (!ReadReplay(slot, replay, Width::kNeighbours).ok()) {
        lacking.push_back(slot);  // nobody knows
        continue;
      }
      const std::vector<Snapshot>& known = live_[slot].snapshots;
      const auto begin = FirstFrom(known, replay), end = FirstFrom(known, replay + 1);
      const layout::Counters& counters = live_[slot].probe.counters;
      const std::uint64_t before = begin == known.begin() ? 0 : std::prev(begin)->key.id;
      const std::uint64_t newest = known.empty() ? 0 : known.back().key.id;
      const std::uint64_t after = end == known.end()
                                      ? std::max(newest, counters.consumed + counters.lost()) + 1
                                      : end->key.id;
      const bool has_all = after - before - 1 == static_cast<std::uint64_t>(end - begin);
      // A replay has one snapshot of what is not in a body.
      const bool is_here = begin != end && !slots_[slot].in_body;
      if (counters.suppressed > 0 || !(has_all || is_here)) lacking.push_back(slot);
    }
    return lacking;
  }

  Result<Snapshot> Get(std::size_t slot, const Key& key) override {
    source::CountSnapshotRead();
    const Snapshot* known = live_[slot].Known(key.id);
    if (known == nullptr) {
      const Result<std::vector<Key>> keys = Keys(slot);
      if (!keys.ok()) return keys.error();
      known = live_[slot].Known(key.id);
    }
    if (known != nullptr) return *known;
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

  std::vector<source::Gap> Gaps() override {
    std::vector<source::Gap> gaps;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const Result<recording::Account> account = AccountOf(slot);
      if (!account.ok()) continue;  // reading its snapshots reports the error
      AddGaps(slot, slots_[slot].in_body, *live_[slot].keys, account->lost, &gaps);
    }
    return gaps;
  }

  Result<recording::Account> AccountOf(std::size_t slot) override {
    const Result<std::vector<Key>> keys = Keys(slot);
    if (!keys.ok()) return keys.error();
    return AccountFrom(live_[slot].probe.counters, keys->size());
  }

  std::vector<source::Finding> Findings() override {
    std::vector<source::Finding> findings;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const Probe& probe = live_[slot].probe;
      const auto add = [&](layout::FindingKind kind, const std::optional<FirstNonfinite>& first) {
        if (!first) return;
        findings.push_back({.slot = slot,
                            .kind = kind,
                            .replay = first->replay,
                            .serial = first->serial,
                            .step = first->step,
                            .count = first->count});
      };
      add(layout::FindingKind::kNan, probe.first_nan);
      add(layout::FindingKind::kInf, probe.first_inf);
      if (!probe.verdict || probe.verdict->state != layout::VerdictState::kFail) continue;
      findings.push_back({.slot = slot,
                          .kind = layout::FindingKind::kMismatch,
                          .replay = probe.verdict->first_failed_replay,
                          .text = probe.verdict->text});
    }
    return findings;
  }

  std::optional<std::vector<source::ProcessGraphs>> Graphs() override {
    std::vector<source::ProcessGraphs> all;
    for (const Session& job : jobs_.sessions()) {
      const Result<std::vector<SessionGraphs>> graphs = ListGraphs(client_, job.key);
      if (!graphs.ok()) return std::nullopt;
      for (const SessionGraphs& one : *graphs) {
        SetProcess(job, &all.emplace_back(source::ProcessGraphs{.census = one}).of);
      }
    }
    return all;
  }

 private:
  struct Live {
    Probe probe;
    std::size_t group = 0;                      // its place in groups_
    std::optional<std::vector<Key>> keys = {};  // all of them
    std::vector<Snapshot> snapshots = {};       // by ordinal

    // Null without one. They are many, and mostly have consecutive ordinals.
    Snapshot* Known(std::uint64_t ordinal) {
      if (snapshots.empty() || ordinal < snapshots.front().key.id) return nullptr;
      const std::uint64_t place = ordinal - snapshots.front().key.id;
      if (place < snapshots.size() && snapshots[place].key.id == ordinal) return &snapshots[place];
      const auto found = PlaceOf(ordinal);
      return found == snapshots.end() || found->key.id != ordinal ? nullptr : &*found;
    }
    void Put(Snapshot snapshot) {
      if (Snapshot* const known = Known(snapshot.key.id)) {
        *known = std::move(snapshot);
      } else {
        snapshots.insert(PlaceOf(snapshot.key.id), std::move(snapshot));
      }
    }
    std::vector<Snapshot>::iterator PlaceOf(std::uint64_t ordinal) {
      return std::ranges::lower_bound(snapshots, ordinal, {},
                                      [](const Snapshot& one) { return one.key.id; });
    }
  };
  // What is read of a slot around a replay: that alone, or the snapshots before and after it, too.
  enum class Width : std::uint8_t { kReplay, kNeighbours };
  // Slots of one graph, one after another.
  struct Group {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::map<std::uint64_t, Width> replays_read = {};
  };

  static std::vector<Snapshot>::const_iterator FirstFrom(const std::vector<Snapshot>& known,
                                                         std::uint64_t replay) {
    return std::ranges::lower_bound(known, replay, {},
                                    [](const Snapshot& one) { return one.key.replay; });
  }

  // Has the replay read of all slots of the slot's graph.
  Result<void> ReadReplay(std::size_t slot, std::uint64_t replay, Width width) {
    if (live_[slot].keys) return {};
    Group& group = groups_[live_[slot].group];
    const auto known = group.replays_read.find(replay);
    if (known != group.replays_read.end() && known->second >= width) return {};
    const Result<std::size_t> read =
        Read(group.begin, group.end, replay, width, [](std::size_t) { return false; });
    if (!read.ok()) return read.error();
    group.replays_read[replay] = width;
    return {};
  }

  // Reads snapshots of the slots [begin, end), which are of one session: of `replay`, or all if
  // that is 0. Stops after an answer if `is_enough`, given the first slot that may lack some.
  // Returns that slot; `end` if there is none.
  Result<std::size_t> Read(std::size_t begin, std::size_t end, std::uint64_t replay, Width width,
                           const std::function<bool(std::size_t)>& is_enough) {
    const auto order_of = [&](std::size_t slot) {
      return static_cast<std::uint32_t>(live_[slot].probe.slot.order);
    };
    v1::HistoryRequest request;
    request.set_session(live_[begin].probe.session);
    request.set_slot(order_of(begin));
    request.set_last_slot(order_of(end - 1));
    request.set_first(replay);
    request.set_last(replay);
    request.set_neighbours(width == Width::kNeighbours);
    for (std::size_t slot = begin;;) {
      const Result<answers::History> reply = Ask<answers::History>(client_, request);
      if (!reply.ok()) {
        // The daemon has forgotten them since: its account says what is gone.
        if (client_.last_failure() == client::Failure::kNothingMatched) return end;
        return reply.error();
      }
      for (const answers::Kept& kept : reply->items) {
        while (slot < end && order_of(slot) < kept.slot) ++slot;
        if (slot == end) break;
        if (order_of(slot) != kept.slot) continue;
        live_[slot].Put(ToSnapshot(slot, kept));
      }
      if (!reply->more || reply->items.empty()) return end;
      const answers::Kept& last = reply->items.back();
      const std::pair next(last.slot, last.ordinal + 1);
      if (next <= std::pair(request.slot(), request.first_ordinal())) return end;
      request.set_slot(next.first);
      request.set_first_ordinal(next.second);
      if (slot == end || is_enough(slot)) return slot;
    }
  }

  Result<void> LoadKeys(std::size_t slot) {
    std::size_t begin = slot;
    const std::size_t end = groups_[live_[slot].group].end;
    // A slot without any snapshot needs no question.
    while (begin < end && live_[begin].probe.replay == 0) live_[begin++].keys.emplace();
    if (begin > slot) return {};
    const Result<std::size_t> read = Read(
        begin, end, 0, Width::kReplay, [&](std::size_t incomplete) { return incomplete > slot; });
    if (!read.ok()) return read.error();
    for (; begin < *read; ++begin) {
      std::vector<Key> keys;
      for (const Snapshot& snapshot : live_[begin].snapshots) {
        if (snapshot.key.replay > live_[begin].probe.replay) break;
        keys.push_back(snapshot.key);
      }
      live_[begin].keys = std::move(keys);
    }
    return {};
  }

  Snapshot ToSnapshot(std::size_t slot, const answers::Kept& kept) const {
    Snapshot snapshot{.slot = slot,
                      .key = {kept.replay, kept.ordinal, kept.iteration},
                      .serial = kept.serial,
                      .step = kept.step,
                      .timestamp_ns = kept.timestamp_ns,
                      .has_values = kept.has_values,
                      .payload_bytes = slots_[slot].payload_bytes,
                      .stats = kept.stats};
    if (kept.unchanged) snapshot.same_as = kept.ordinal - 1;
    return snapshot;
  }

  client::Client& client_;
  const LiveJobs jobs_;
  std::vector<Slot> slots_;
  std::vector<Live> live_;  // of each slot
  std::vector<Group> groups_;
};

struct Sessions {
  std::vector<Session> known;  // to the daemon
  std::vector<Session> meant;
  Session first;  // of those
};

// Those that `selector` means; if it is empty, all ranks of the job that comes first. Fails: there
// is none.
Result<Sessions> SessionsOf(client::Client& client, const std::string& selector) {
  // Let the daemon read what jobs did just now, and notice which of them have ended.
  [[maybe_unused]] const auto synced = Sync(client);
  Result<std::vector<Session>> known = ListSessions(client);
  if (!known.ok()) return known.error();
  Sessions sessions{.known = *std::move(known)};
  const Session* first = nullptr;
  for (const Session& one : sessions.known) {
    if (!MatchesSession(one, selector)) continue;
    if (first == nullptr || ComesFirst(one, *first)) first = &one;
  }
  if (first == nullptr) {
    return Error{selector.empty() ? "no job of this user has a probe"
                                  : "no session '" + selector + "'"};
  }
  for (const Session& one : sessions.known) {
    const bool is_same_job = &one == first || (!one.run_id.empty() && one.run_id == first->run_id &&
                                               one.restart_count == first->restart_count);
    if (selector.empty() ? is_same_job : MatchesSession(one, selector)) {
      sessions.meant.push_back(one);
    }
  }
  sessions.first = *first;
  return sessions;
}

// What the daemon is asked for: one session alone, or all of them.
std::string SelectorOf(const Sessions& sessions) {
  return sessions.meant.size() == 1 ? sessions.first.key : "";
}

}  // namespace

Result<std::unique_ptr<source::Source>> OpenLive(client::Client& client,
                                                 const std::string& session) {
  const Result<Sessions> sessions = SessionsOf(client, session);
  if (!sessions.ok()) return sessions.error();
  const std::vector<Session>& meant = sessions->meant;
  Result<std::vector<Probe>> probes = ListProbesAndGaps(client, SelectorOf(*sessions));
  if (!probes.ok()) return probes.error();
  std::map<std::string, std::uint64_t> shown;  // by session: what its probes have produced
  for (const Probe& probe : *probes) shown[probe.session] += probe.counters.produced;
  LiveJobs jobs(sessions->known);
  for (const Session& one : meant) jobs.Add(one, shown[one.key]);
  auto live = std::make_unique<LiveSource>(client, std::move(jobs));
  live->Expect(probes->size());
  for (Probe& probe : *probes) {
    const bool is_meant = std::ranges::find(meant, probe.session, &Session::key) != meant.end();
    if (is_meant) live->AddProbe(std::move(probe));
  }
  if (live->slots().empty() && live->Describe().not_seen.empty()) {
    return Error{"session " + sessions->first.label + " has no probe"};
  }
  return std::unique_ptr<source::Source>(std::move(live));
}

Result<LiveLog> OpenLiveLog(client::Client& client, const std::string& session,
                            const std::string& graph, const std::function<bool(int)>& wants_rank) {
  const Result<Sessions> sessions = SessionsOf(client, session);
  if (!sessions.ok()) return sessions.error();
  const std::vector<Session>& meant = sessions->meant;
  Result<std::vector<OpLog>> logs = ListOpLogs(client, SelectorOf(*sessions));
  if (!logs.ok()) return logs.error();
  // Eager rows may be what a job says that its logs do not show, of any of them.
  if (std::ranges::find(*logs, 0u, &OpLog::graph_id) != logs->end()) {
    Result<std::unique_ptr<source::Source>> whole = OpenLive(client, session);
    if (!whole.ok()) return whole.error();
    return LiveLog{.source = *std::move(whole), .is_whole = true};
  }
  std::erase_if(*logs, [&](const OpLog& log) {
    return !wants_rank(log.rank) ||
           std::ranges::find(meant, log.session, &Session::key) == meant.end();
  });
  const auto place = [](const OpLog& log) {
    return std::tuple(log.first_slot, log.label, log.rank, log.graph_id);
  };
  std::ranges::stable_sort(*logs, {}, place);
  std::vector<analysis::OpLogHead> heads;
  for (const OpLog& log : *logs) {
    heads.push_back(
        {log.graph_id, log.graph, log.first_slot, log.last_slot, log.last_timestamp_ns});
  }
  LiveLog result;
  std::set<std::uint64_t> ranks;
  for (const OpLog& log : *logs) {
    if (log.rank >= 0) ranks.insert(static_cast<std::uint64_t>(log.rank));
  }
  result.ranks.assign(ranks.begin(), ranks.end());
  LiveJobs jobs(sessions->known);
  for (const Session& one : meant) jobs.Add(one, one.counters.produced);
  auto live = std::make_unique<LiveSource>(client, std::move(jobs));
  if (const auto chosen = analysis::ChooseOpLog(heads, graph, &result.others)) {
    Result<std::vector<Probe>> rows = ListRows(client, (*logs)[*chosen]);
    if (!rows.ok()) return rows.error();
    live->Expect(rows->size());
    for (Probe& row : *rows) live->AddProbe(std::move(row));
  }
  result.source = std::move(live);
  return result;
}

}  // namespace cgdebug::live
