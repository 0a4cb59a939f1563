#include "daemon/serve/handlers.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "daemon/core/base/glob.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/base/realtime.h"
#include "daemon/core/endpoint/daemon_mark.h"
#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/wire/message_fields.h"
#include "daemon/log/log.h"
#include "daemon/model/own_usage.h"
#include "daemon/serve/candidates.h"
#include "daemon/serve/messages.h"
#include "daemon/serve/row_values.h"
#include "daemon/serve/selection.h"

namespace cgdebug::serve {
namespace {

using pipeline::SessionRecord;
using pipeline::SlotRecord;
using pipeline::StoredSnapshot;

constexpr std::size_t kMaxEntries = 4096;  // of one answer: a few MiB at most
constexpr std::size_t kSlotsAtOnce = 256;  // an answer is often full after few of them

bool Means(const v1::GetRequest& request, const pipeline::Registry& registry,
           const pipeline::SlotIdentity& slot) {
  const layout::SlotFacts& registration = slot.registration;
  return slot.probe == request.probe() &&
         (request.graph_id() == 0 || request.graph_id() == registration.graph_id) &&
         (!request.has_invocation() || request.invocation() == registration.invocation) &&
         (!request.has_slot() || request.slot() == registration.order) &&
         MatchesWhich(registry, slot, request.which());
}

When WhenOf(const v1::GetRequest& request) {
  When when = {.replay = request.replay()};
  if (request.has_iteration()) when.iteration = request.iteration();
  return when;
}

// Says what memory keeps of it.
void SetKept(const pipeline::SnapshotStore& store, const pipeline::SlotPtr& slot,
             std::optional<answers::FirstNonfinite>* first) {
  using Kept = answers::FirstNonfinite::Kept;
  if (!*first) return;
  const auto stored = store.Find(slot, (*first)->replay, (*first)->serial);
  (*first)->kept = !stored                      ? Kept::kNothing
                   : stored->payload == nullptr ? Kept::kStatistics
                                                : Kept::kValues;
}

pipeline::SlotRange RangeOf(const v1::ProbesRequest& request) {
  if (!request.has_rows_of()) return {};
  const v1::ProbesRequest::RowsOf& rows = request.rows_of();
  return {.first = rows.first_slot(),
          .last = rows.last_slot() == 0 ? UINT64_MAX : rows.last_slot(),
          .rows_of = rows.graph_id()};
}

// What names that probe's tensors on the command line: "blk3.attn#1{8,512}@g:bs=8".
std::string NameOf(const v1::GetRequest& request) {
  return request.probe() +
         (request.invocation() == 0 ? "" : fmt::format("#{}", request.invocation())) +
         ToWhich(request.which()).Text();
}

// Why the values of a slot on the device cannot be shown.
std::string WhyLeftOnDevice(const v1::GetRequest& request, const SlotRecord& slot,
                            pipeline::SessionState state) {
  const layout::SlotFacts& r = slot.slot->registration;
  const std::uint64_t newest = slot.counters.replays;
  const std::uint64_t kept =
      std::uint64_t{r.device_capacity} * std::max<std::uint64_t>(r.record_every, 1);
  const std::string replays =
      newest <= 1 ? fmt::format("replay {}", newest)
                  : fmt::format("replays {} to {}", newest > kept ? newest - kept + 1 : 1, newest);
  if (state == pipeline::SessionState::kAlive && slot.retired) {
    return fmt::format(
        "probe '{}': the values of {} stayed on the device, and its graph is gone, so no replay "
        "sends them any more. While the job holds the probe, its records() returns them",
        slot.slot->probe, replays);
  }
  if (state != pipeline::SessionState::kAlive) {
    return fmt::format(
        "probe '{}': the values of {} were on the device of a job that {}, and are gone; those "
        "before them had been overwritten there",
        slot.slot->probe, replays, state == pipeline::SessionState::kDied ? "died" : "ended");
  }
  return fmt::format(
      "probe '{0}': its values are on the device, whose ring has {1}. They come when the job "
      "replays, and none came now. Type: cgdebug-cli show{2} '{3}@-1' while it replays",
      slot.slot->probe, replays, SameSession(request.session()), NameOf(request));
}

// Why a live slot cannot be changed, the most telling first.
enum class CannotSet { kRow, kEagerRow, kWithoutRing };

std::optional<CannotSet> WhyNotSet(const pipeline::SlotIdentity& slot, const v1::Control& control) {
  if (pipeline::IsOpLogRow(slot)) return CannotSet::kRow;
  // What it needs to send its values is decided when the op runs.
  if (pipeline::IsOfOpLog(slot) && control.mode() == v1::Control::FULL) return CannotSet::kEagerRow;
  const bool is_for_rings = control.trigger() == v1::Control::MISMATCH;
  if (is_for_rings && !slot.IsOnDevice()) return CannotSet::kWithoutRing;
  return std::nullopt;
}

std::string TextOf(CannotSet why, const pipeline::SlotIdentity& slot, bool wants_values) {
  switch (why) {
    case CannotSet::kRow:
      return fmt::format(
          "'{}' is a row of an op log: all rows of a graph leave it together, as statistics, so "
          "one of them cannot be changed{}",
          slot.probe, wants_values ? ". " + HowToGetValues(slot) : "");
    case CannotSet::kEagerRow:
      return fmt::format("'{}' is a row of an eager log, which has statistics alone. {}",
                         slot.probe, HowToGetValues(slot));
    case CannotSet::kWithoutRing:
      break;
  }
  return fmt::format(
      "mismatch stops rings in device memory, and '{}' has none there: "
      "TensorRecord(where=\"device\")",
      slot.probe);
}

// The probe exists, but not the requested call.
void SetNoCall(const v1::GetRequest& request, v1::Error* error) {
  std::string call;
  if (request.has_invocation()) call += fmt::format(" {}", request.invocation());
  if (request.graph_id() != 0) call += fmt::format(" in graph {}", request.graph_id());
  call += ToWhich(request.which()).Text();
  error->set_code(v1::Error::NO_PROBE);
  error->set_message(fmt::format("probe '{0}' has no call{1}. Type: cgdebug-cli probes{2} '{0}'",
                                 request.probe(), call, SameSession(request.session())));
}

// What a request for a tensor means.
struct Meant {
  std::vector<Candidate> candidates = {};  // with a snapshot, here or left on the device
  bool has_probe = false;
  pipeline::SessionState state = pipeline::SessionState::kAlive;  // of its job
  std::string left_on_device = {};  // why values that are there cannot be shown
};

// Of the last of `sessions` that has the probe. Nothing, only without `may_wait`: a ring may hold
// the replay, so the ingest thread must be asked.
std::optional<Meant> MeantBy(const v1::GetRequest& request,
                             const std::vector<SessionRecord>& sessions, bool may_wait,
                             const Model& model) {
  Meant meant;
  const When when = WhenOf(request);
  for (auto session = sessions.rbegin(); session != sessions.rend() && !meant.has_probe;
       ++session) {
    for (SlotRecord& slot : model.registry->Slots(session->session, {.probe = request.probe()})) {
      if (!Means(request, *model.registry, *slot.slot)) continue;
      meant.has_probe = true;
      meant.state = session->state;
      Candidate candidate = {std::move(slot), {}};
      candidate.history = model.store->History(candidate.slot.slot);
      if (RingMayHave(candidate, when, request.metadata_only())) {
        if (!may_wait) return std::nullopt;
        AddFromRing(&candidate, when, model.reads);
      }
      if (candidate.slot.slot->IsOnDevice() && candidate.slot.counters.produced != 0) {
        meant.left_on_device = WhyLeftOnDevice(request, candidate.slot, meant.state);
      }
      if (!candidate.history.empty() || candidate.left_on_device) {
        meant.candidates.push_back(std::move(candidate));
      }
    }
  }
  return meant;
}

// That no probe, or no call of it, is what the request means.
void SetNotMeant(const v1::GetRequest& request, const std::vector<SessionRecord>& sessions,
                 const pipeline::Registry& registry, v1::Error* error) {
  std::vector<std::string> names;
  for (const SessionRecord& session : sessions) {
    for (const pipeline::SlotPtr& slot : registry.SlotPtrs(session.session->key)) {
      names.push_back(slot->probe);
    }
  }
  const bool is_known = std::find(names.begin(), names.end(), request.probe()) != names.end();
  is_known ? SetNoCall(request, error)
           : SetNoProbe(request.probe(), request.session(), sessions, names, error);
}

}  // namespace

Handlers::Handlers(const Model& model, const ServeOptions& options)
    : model_(model), options_(options), started_ns_(RealtimeNs()) {}

std::optional<Answer> Handlers::AnswerNow(const v1::Request& request,
                                          pipeline::PayloadPtr* payload) {
  Answer answer;
  switch (request.kind_case()) {
    case v1::Request::kHello:
      Hello(request.hello(), &answer);
      break;
    case v1::Request::kStatus:
      Status(request.status(), &answer);
      break;
    case v1::Request::kSessions:
      Sessions(request.sessions(), &answer);
      break;
    case v1::Request::kProbes:
      Probes(request.probes(), &answer);
      break;
    case v1::Request::kGet:
      if (!Get(request.get(), /*may_wait=*/false, &answer, payload)) return std::nullopt;
      break;
    case v1::Request::kHistory:
      History(request.history(), &answer);
      break;
    case v1::Request::kOpLogs:
      OpLogs(request.op_logs(), &answer);
      break;
    case v1::Request::kSet:
      Set(request.set(), &answer);
      break;
    case v1::Request::kRecordList:
      RecordList(&answer);
      break;
    case v1::Request::kPrune:
      Prune(&answer);
      break;
    case v1::Request::kShutdown:
      Shutdown(request.shutdown(), &answer);
      break;
    case v1::Request::kFreeze:
    case v1::Request::kGraphs:
    case v1::Request::kRecordStart:
    case v1::Request::kRecordStop:
    case v1::Request::kSync:
      return std::nullopt;
    default:
      SetError(&answer, v1::Error::BAD_REQUEST,
               "cgdebug-daemon " CGDEBUG_VERSION
               " does not know this request. Install the same cgdebug for client and daemon");
  }
  return answer;
}

void Handlers::Hello(const v1::Hello& request, Answer* answer) {
  if (request.protocol() != wire::kProtocol) {
    return SetError(
        answer, v1::Error::VERSION,
        fmt::format("this client ({} {}) speaks protocol {}, cgdebug-daemon {} speaks protocol {}. "
                    "Install the same cgdebug for both, then type: cgdebug-cli daemon stop",
                    request.client(), request.version(), request.protocol(), CGDEBUG_VERSION,
                    wire::kProtocol));
  }
  v1::HelloReply* reply = answer->message()->mutable_hello();
  reply->set_protocol(wire::kProtocol);
  reply->set_version(CGDEBUG_VERSION);
  reply->set_pid(getpid());
  reply->set_shm_device(DeviceOf(layout::kShmDirectory));
}

void Handlers::Status(const v1::StatusRequest& request, Answer* answer) {
  const auto sessions =
      SelectSessions(*model_.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  answer->clear_error();
  answers::Status status;
  status.version = CGDEBUG_VERSION;
  status.pid = getpid();
  status.started_ns = started_ns_;
  status.cpu_seconds = pipeline::CpuSeconds();
  status.rss_bytes = pipeline::ResidentBytes();
  status.socket = options_.socket_path;
  for (const SessionRecord& record : *sessions) status.sessions.push_back(SessionNow(record));
  status.skipped = model_.registry->Skipped();
  status.clients = static_cast<std::uint32_t>(clients_);
  status.memory_bytes = model_.store->bytes();
  status.memory_limit_bytes = model_.store->max_bytes();
  status.idle_timeout_s = options_.idle_timeout_s;
  status.recordings = model_.recorder->List();
  std::erase_if(status.recordings, [](const pipeline::RecordingInfo& info) {
    return !info.active && info.error.empty();
  });
  struct statvfs shm = {};
  if (statvfs(layout::kShmDirectory, &shm) == 0) {
    status.shm_free_bytes = shm.f_bavail * shm.f_frsize;
    status.shm_total_bytes = shm.f_blocks * shm.f_frsize;
  }
  answer->Set(status);
}

void Handlers::Sessions(const v1::SessionsRequest& request, Answer* answer) {
  answers::Sessions sessions;
  for (const SessionRecord& record : model_.registry->Sessions()) {
    const bool alive = record.state == pipeline::SessionState::kAlive;
    if (alive || request.include_dead()) sessions.value.push_back(SessionNow(record));
  }
  answer->Set(sessions);
}

answers::Session Handlers::SessionNow(const SessionRecord& record) const {
  answers::Session session = SessionOf(record, *model_.registry);
  session.counters.kept = model_.store->CountOf(record.session);
  session.nonfinite_let_go = model_.store->NotFiniteLetGo(record.session);
  // The daemon keeps nothing of a slot that is no longer shown.
  SetKept(*model_.store, record.first_nan.slot, &session.first_nan);
  SetKept(*model_.store, record.first_inf.slot, &session.first_inf);
  return session;
}

answers::Probe Handlers::ProbeNow(const SlotRecord& record, bool with_last_stats) const {
  answers::Probe probe = ProbeOf(record, *model_.registry, with_last_stats);
  probe.counters.kept = model_.store->CountOf(record.slot);
  SetKept(*model_.store, record.slot, &probe.first_nan);
  SetKept(*model_.store, record.slot, &probe.first_inf);
  return probe;
}

void Handlers::Probes(const v1::ProbesRequest& request, Answer* answer) {
  const std::vector<std::string> patterns(request.probes().begin(), request.probes().end());
  const Result<Selector> selector = Selector::Parse(patterns);
  if (!selector.ok()) {
    return SetError(answer, v1::Error::BAD_REQUEST, selector.error().message);
  }
  const auto sessions =
      SelectSessions(*model_.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  if (sessions->empty() && !patterns.empty()) {
    return SetNoSession(request.session(), *sessions, answer->mutable_error());
  }
  answer->clear_error();
  std::vector<std::string> names;
  answers::Probes probes;
  bool is_after = request.after_session().empty();
  for (const SessionRecord& session : *sessions) {
    pipeline::SlotRange range = RangeOf(request);
    if (!is_after) {
      if (session.session->key != request.after_session()) continue;
      is_after = true;
      range.first = std::max(range.first, std::uint64_t{request.after_slot()} + 1);
    }
    std::vector<SlotRecord> slots;
    std::size_t wanted = 0;
    do {
      wanted = patterns.empty() ? kMaxEntries - probes.items.size() + 1 : kMaxEntries;
      slots = model_.registry->Slots(session.session, range, wanted);
      for (const SlotRecord& slot : slots) {
        range.first = slot.slot->registration.order + 1;
        if (!patterns.empty()) names.push_back(slot.slot->probe);
        if (!selector->Matches(slot.slot->probe)) continue;
        if (probes.items.size() >= kMaxEntries) {
          probes.more = true;
          return answer->Set(probes);
        }
        probes.items.push_back(ProbeNow(slot, !request.without_stats()));
      }
    } while (slots.size() == wanted && range.first != 0);  // after the largest order
  }
  if (!is_after) {
    return SetError(answer, v1::Error::NO_SESSION,
                    fmt::format("session '{}' was removed while its probes were listed. Type the "
                                "command again",
                                request.after_session()));
  }
  if (probes.items.empty() && !patterns.empty() && request.after_session().empty()) {
    return SetNoProbe(fmt::format("{}", fmt::join(patterns, " ")), request.session(), *sessions,
                      names, answer->mutable_error());
  }
  answer->Set(probes);
}

void Handlers::Graphs(const v1::GraphsRequest& request, Answer* answer) const {
  model_.reads->AtHeads([](const pipeline::RingHeads&) {});  // the ingest thread looks at them then
  const auto sessions =
      SelectSessions(*model_.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  answer->clear_error();
  answers::Graphs graphs;
  for (const SessionRecord& record : *sessions) {
    answers::SessionGraphs& one = graphs.value.emplace_back();
    static_cast<layout::GraphCensus&>(one) = model_.registry->Graphs(record.session);
    one.session = record.session->key;
    one.session_label = record.session->label;
    one.rank = record.session->rank;
  }
  answer->Set(graphs);
}

bool Handlers::Get(const v1::GetRequest& request, bool may_wait, Answer* answer,
                   pipeline::PayloadPtr* payload) const {
  auto sessions = SelectSessions(*model_.registry, request.session(), answer->mutable_error());
  if (!sessions) return true;
  if (sessions->empty()) {
    SetNoSession("", *sessions, answer->mutable_error());
    return true;
  }
  answer->clear_error();
  // Those that are alive come first, then the newest.
  std::stable_partition(sessions->begin(), sessions->end(), [](const SessionRecord& session) {
    return session.state != pipeline::SessionState::kAlive;
  });
  std::optional<Meant> meant = MeantBy(request, *sessions, may_wait, model_);
  if (!meant) return false;
  if (!meant->has_probe) {
    SetNotMeant(request, *sessions, *model_.registry, answer->mutable_error());
  } else if (!meant->candidates.empty()) {
    FillGet(request, meant->state, &meant->candidates, answer, payload);
  } else if (!meant->left_on_device.empty()) {
    SetError(answer, v1::Error::NO_SNAPSHOT, meant->left_on_device);
  } else {
    SetError(answer, v1::Error::NO_SNAPSHOT,
             fmt::format("probe '{}' has no snapshot yet: its graph has not been replayed. "
                         "Type: cgdebug-cli tail -f{} '{}'",
                         request.probe(), SameSession(request.session()), request.probe()));
  }
  return true;
}

// Requires: there is a candidate.
void Handlers::FillGet(const v1::GetRequest& request, pipeline::SessionState state,
                       std::vector<Candidate>* candidates, Answer* answer,
                       pipeline::PayloadPtr* payload) const {
  const Candidate* owner = nullptr;
  const std::int64_t replay = request.replay() == 0 ? -1 : request.replay();
  const When when = WhenOf(request);
  PreferLiving(candidates, when);
  if (const std::string ambiguous =
          Ambiguous(*candidates, when, *model_.registry, SameSession(request.session()));
      !ambiguous.empty()) {
    return SetError(answer, v1::Error::NO_SNAPSHOT, ambiguous);
  }
  const StoredSnapshot* stored =
      replay > 0 ? FindReplay(*candidates, when, &owner)
                 : FindFromEnd(*candidates, -static_cast<std::uint64_t>(replay), &owner);
  if (const Candidate* left = FindLeftOnDevice(*candidates, when, stored, owner)) {
    return SetError(answer, v1::Error::NO_SNAPSHOT, WhyLeftOnDevice(request, left->slot, state));
  }
  if (stored == nullptr) {
    FindFromEnd(*candidates, 1, &owner);
    return SetError(
        answer, v1::Error::NO_SNAPSHOT,
        fmt::format("probe '{}' has no snapshot of replay {}{}: {} are kept, replays {} to {}. "
                    "Type: cgdebug-cli show{} '{}@-1'",
                    request.probe(), replay,
                    when.iteration ? fmt::format(", iteration {}", *when.iteration) : "",
                    owner->history.size(), owner->history.front().snapshot->replay,
                    owner->history.back().snapshot->replay, SameSession(request.session()),
                    NameOf(request)));
  }
  v1::GetReply* reply = answer->message()->mutable_get();
  Fill(*stored->snapshot, *model_.registry, reply->mutable_snapshot());
  FillMessage(ProbeNow(owner->slot), reply->mutable_probe());
  reply->set_payload_dropped(stored->payload == nullptr);
  if (stored->payload == nullptr || request.metadata_only() || stored->payload->empty()) return;
  reply->set_payload_bytes(stored->payload->size());
  *payload = stored->payload;
}

void Handlers::OpLogs(const v1::OpLogsRequest& request, Answer* answer) const {
  const auto sessions =
      SelectSessions(*model_.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  answer->clear_error();
  answers::OpLogs logs;
  for (const SessionRecord& record : *sessions) {
    for (const pipeline::OpLogRecord& log : model_.registry->OpLogs(record.session)) {
      logs.value.push_back({.session = record.session->key,
                            .label = record.session->label,
                            .rank = record.session->rank,
                            .graph_id = log.graph_id,
                            .graph = log.graph,
                            .first_slot = static_cast<std::uint32_t>(log.first_order),
                            .last_slot = static_cast<std::uint32_t>(log.last_order),
                            .rows = static_cast<std::uint32_t>(log.rows),
                            .last_timestamp_ns = log.last_timestamp_ns});
    }
  }
  answer->Set(logs);
}

void Handlers::History(const v1::HistoryRequest& request, Answer* answer) const {
  const std::uint64_t first = request.slot();
  pipeline::SlotRange range = {.first = first,
                               .last = std::max<std::uint64_t>(first, request.last_slot())};
  const auto next_slots = [&] {
    return model_.registry->SlotPtrs(request.session(), range, kSlotsAtOnce);
  };
  std::vector<pipeline::SlotPtr> slots = next_slots();
  if (slots.empty()) {
    return SetError(
        answer, v1::Error::NO_PROBE,
        fmt::format("session '{}' has no call {} of a probe any more. Type: cgdebug-cli "
                    "probes",
                    request.session(), request.slot()));
  }
  answers::History history;
  for (; !slots.empty(); slots = next_slots()) {
    for (const pipeline::SlotPtr& slot : slots) {
      const std::uint64_t order = slot->registration.order;
      const std::uint64_t first_ordinal = order == first ? request.first_ordinal() : 0;
      for (const StoredSnapshot& stored : model_.store->History(slot)) {
        const pipeline::Snapshot& snapshot = *stored.snapshot;
        if (snapshot.replay < request.first()) continue;
        if (snapshot.ordinal < first_ordinal) continue;
        if (request.last() != 0 && snapshot.replay > request.last()) break;
        if (history.items.size() >= kMaxEntries) {
          history.more = true;
          return answer->Set(history);
        }
        history.items.push_back(KeptOf(stored));
      }
    }
    range.first = slots.back()->registration.order + 1;
    if (range.first > range.last) break;
  }
  answer->Set(history);
}

void Handlers::Set(const v1::SetRequest& request, Answer* answer) {
  const std::vector<std::string> patterns(request.probes().begin(), request.probes().end());
  const Result<Selector> selector = Selector::Parse(patterns);
  const Result<pipeline::ControlChange> wanted = ToChange(request, RealtimeNs());
  if (!selector.ok() || !wanted.ok() || patterns.empty()) {
    return SetError(answer, v1::Error::BAD_REQUEST,
                    !selector.ok() ? selector.error().message
                    : !wanted.ok() ? wanted.error().message
                                   : "which probes? Type: cgdebug-cli set '*' ...");
  }
  const auto sessions =
      SelectSessions(*model_.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  const bool any_alive = std::any_of(sessions->begin(), sessions->end(), [](const auto& session) {
    return session.state == pipeline::SessionState::kAlive;
  });
  if (!any_alive) {
    return SetError(answer, v1::Error::NO_SESSION,
                    "a probe can be changed while its job is alive, and none is. "
                    "Type: cgdebug-cli ps -a");
  }
  answer->clear_error();
  std::vector<std::string> names;
  std::set<std::string> changed;
  std::vector<pipeline::ControlChange> changes;
  std::map<CannotSet, pipeline::SlotPtr> refused;  // the first of each kind
  for (const SessionRecord& session : *sessions) {
    if (session.state != pipeline::SessionState::kAlive) continue;
    for (const SlotRecord& slot : model_.registry->Slots(session.session)) {
      if (slot.retired) continue;
      names.push_back(slot.slot->probe);
      if (!selector->Matches(slot.slot->probe)) continue;
      if (!MatchesWhich(*model_.registry, *slot.slot, request.which())) continue;
      if (const auto why = WhyNotSet(*slot.slot, request.control())) {
        if (!layout::IsNoRow(slot.slot->op)) refused.try_emplace(*why, slot.slot);
        continue;
      }
      changed.insert(session.session->uuid + slot.slot->probe);
      changes.push_back(*wanted);
      changes.back().slot = slot.slot;
    }
  }
  if (changes.empty() && !refused.empty()) {
    const auto& [why, slot] = *refused.begin();
    return SetError(answer, v1::Error::BAD_REQUEST,
                    TextOf(why, *slot, request.control().mode() == v1::Control::FULL));
  }
  if (changes.empty()) {
    return SetNoProbe(fmt::format("{}", fmt::join(patterns, " ")), request.session(), *sessions,
                      names, answer->mutable_error());
  }
  answer->Set(answers::Controlled{.slots = static_cast<std::uint32_t>(changes.size()),
                                  .probes = static_cast<std::uint32_t>(changed.size()),
                                  .expires_ns = wanted->control.expires_ns});
  model_.controls->Push(std::move(changes));
}

void Handlers::Prune(Answer* answer) {
  answers::Pruned pruned;
  for (const SessionRecord& record : model_.registry->Sessions()) {
    if (record.state == pipeline::SessionState::kAlive) continue;
    ++pruned.sessions;
    pruned.bytes += record.facts.shm_bytes;
  }
  answer->Set(pruned);
  model_.controls->Prune();
  model_.reads->Wake();  // without a live job it sleeps
}

void Handlers::Shutdown(const v1::ShutdownRequest& request, Answer* answer) {
  const std::size_t alive = model_.registry->AliveCount();
  if (alive > 0 && !request.force()) {
    return SetError(
        answer, v1::Error::BAD_REQUEST,
        fmt::format("{} job{} with probes {} alive: nothing would be printed or compared "
                    "any more. Type: cgdebug-cli daemon stop --force",
                    alive, alive == 1 ? "" : "s", alive == 1 ? "is" : "are"));
  }
  Log("rpc")->info("a client asked this daemon to end");
  shutdown_requested_ = true;
  answer->message()->mutable_shutdown()->set_message(
      fmt::format("cgdebug-daemon (pid {}) ends", getpid()));
}

}  // namespace cgdebug::serve
