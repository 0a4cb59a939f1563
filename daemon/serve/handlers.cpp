#include "daemon/serve/handlers.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/core/base/glob.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/base/realtime.h"
#include "daemon/core/endpoint/daemon_mark.h"
#include "daemon/core/endpoint/endpoint.h"
#include "daemon/log/log.h"
#include "daemon/model/own_usage.h"
#include "daemon/serve/messages.h"
#include "daemon/serve/requests/get.h"
#include "daemon/serve/requests/record.h"
#include "daemon/serve/requests/set.h"
#include "daemon/serve/selection.h"

namespace cgdebug::serve {
namespace {

using pipeline::SessionRecord;
using pipeline::SlotRecord;
using pipeline::StoredSnapshot;

constexpr std::size_t kMaxEntries = 4096;  // of one answer: a few MiB at most
constexpr std::size_t kSlotsAtOnce = 256;  // an answer is often full after few of them

pipeline::SlotRange RangeOf(const v1::ProbesRequest& request) {
  if (!request.has_rows_of()) return {};
  const v1::ProbesRequest::RowsOf& rows = request.rows_of();
  return {.first = rows.first_slot(),
          .last = rows.last_slot() == 0 ? UINT64_MAX : rows.last_slot(),
          .rows_of = rows.graph_id()};
}

void AnswerSessions(const v1::SessionsRequest& request, const Model& model, Answer* answer) {
  answers::Sessions sessions;
  for (const SessionRecord& record : model.registry->Sessions()) {
    const bool alive = record.state == pipeline::SessionState::kAlive;
    if (alive || request.include_dead()) sessions.value.push_back(SessionNow(record, model));
  }
  answer->Set(sessions);
}

void AnswerProbes(const v1::ProbesRequest& request, const Model& model, Answer* answer) {
  const std::vector<std::string> patterns(request.probes().begin(), request.probes().end());
  const Result<Selector> selector = Selector::Parse(patterns);
  if (!selector.ok()) return SetError(answer, v1::Error::BAD_REQUEST, selector.error().message);
  const auto sessions = SelectSessions(*model.registry, request.session(), answer->mutable_error());
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
      slots = model.registry->Slots(session.session, range, wanted);
      probes.items.reserve(std::min(probes.items.size() + slots.size(), kMaxEntries));
      for (const SlotRecord& slot : slots) {
        range.first = slot.slot->registration.order + 1;
        if (!patterns.empty()) names.push_back(slot.slot->probe);
        if (!selector->Matches(slot.slot->probe)) continue;
        if (probes.items.size() >= kMaxEntries) {
          probes.more = true;
          return answer->Set(probes);
        }
        probes.items.push_back(ProbeNow(slot, model, !request.without_stats()));
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

void AnswerGraphs(const v1::GraphsRequest& request, const Model& model, Answer* answer) {
  model.reads->AtHeads([](const pipeline::RingHeads&) {});  // the ingest thread looks at them then
  const auto sessions = SelectSessions(*model.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  answer->clear_error();
  answers::Graphs graphs;
  for (const SessionRecord& record : *sessions) {
    answers::SessionGraphs& one = graphs.value.emplace_back();
    static_cast<layout::GraphCensus&>(one) = model.registry->Graphs(record.session);
    one.session = record.session->key;
    one.session_label = record.session->label;
    one.rank = record.session->rank;
  }
  answer->Set(graphs);
}

void AnswerOpLogs(const v1::OpLogsRequest& request, const Model& model, Answer* answer) {
  const auto sessions = SelectSessions(*model.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  answer->clear_error();
  answers::OpLogs logs;
  for (const SessionRecord& record : *sessions) {
    for (const pipeline::OpLogRecord& log : model.registry->OpLogs(record.session)) {
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

void AnswerHistory(const v1::HistoryRequest& request, const Model& model, Answer* answer) {
  const std::uint64_t first = request.slot();
  pipeline::SlotRange range = {.first = first,
                               .last = std::max<std::uint64_t>(first, request.last_slot())};
  const auto next_slots = [&] {
    return model.registry->SlotPtrs(request.session(), range, kSlotsAtOnce);
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
      const std::vector<StoredSnapshot> kept = model.store->History(slot);
      const auto replay_of = [](const StoredSnapshot& one) { return one.snapshot->replay; };
      auto begin = std::ranges::lower_bound(kept, request.first(), {}, replay_of);
      auto end = request.last() == 0
                     ? kept.end()
                     : std::ranges::upper_bound(kept, request.last(), {}, replay_of);
      if (request.neighbours()) {
        if (begin != kept.begin()) --begin;
        if (end != kept.end()) ++end;
      }
      for (; begin != end; ++begin) {
        if (begin->snapshot->ordinal < first_ordinal) continue;
        if (history.items.size() >= kMaxEntries) {
          history.more = true;
          return answer->Set(history);
        }
        history.items.push_back(KeptOf(*begin));
      }
    }
    range.first = slots.back()->registration.order + 1;
    if (range.first > range.last) break;
  }
  answer->Set(history);
}

void AnswerPrune(const Model& model, Answer* answer) {
  answers::Pruned pruned;
  for (const SessionRecord& record : model.registry->Sessions()) {
    if (record.state == pipeline::SessionState::kAlive) continue;
    ++pruned.sessions;
    pruned.bytes += record.facts.shm_bytes;
  }
  answer->Set(pruned);
  model.controls->Prune();
  model.reads->Wake();  // without a live job it sleeps
}

void AnswerHello(const v1::Hello& request, Answer* answer) {
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

}  // namespace

Handlers::Handlers(const Model& model, const ServeOptions& options)
    : model_(model), options_(options), started_ns_(RealtimeNs()) {}

std::optional<Answer> Handlers::AnswerNow(const v1::Request& request,
                                          pipeline::PayloadPtr* payload) {
  Answer answer;
  switch (request.kind_case()) {
    case v1::Request::kHello:
      AnswerHello(request.hello(), &answer);
      break;
    case v1::Request::kStatus:
      Status(request.status(), &answer);
      break;
    case v1::Request::kSessions:
      AnswerSessions(request.sessions(), model_, &answer);
      break;
    case v1::Request::kProbes:
      AnswerProbes(request.probes(), model_, &answer);
      break;
    case v1::Request::kGet:
      if (!AnswerGet(request.get(), model_, /*may_wait=*/false, &answer, payload)) {
        return std::nullopt;
      }
      break;
    case v1::Request::kHistory:
      AnswerHistory(request.history(), model_, &answer);
      break;
    case v1::Request::kOpLogs:
      AnswerOpLogs(request.op_logs(), model_, &answer);
      break;
    case v1::Request::kSet:
      AnswerSet(request.set(), model_, &answer);
      break;
    case v1::Request::kRecordList:
      AnswerRecordList(model_, &answer);
      break;
    case v1::Request::kPrune:
      AnswerPrune(model_, &answer);
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

Answer Handlers::AnswerSlowly(const v1::Request& request, pipeline::PayloadPtr* payload) const {
  Answer answer;
  if (request.has_get()) AnswerGet(request.get(), model_, /*may_wait=*/true, &answer, payload);
  if (request.has_freeze()) AnswerFreeze(request.freeze(), model_, &answer);
  if (request.has_record_start()) AnswerRecordStart(request.record_start(), model_, &answer);
  if (request.has_record_stop()) AnswerRecordStop(request.record_stop(), model_, &answer);
  if (request.has_sync()) AnswerSync(model_, &answer);
  if (request.has_graphs()) AnswerGraphs(request.graphs(), model_, &answer);
  return answer;
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
  for (const SessionRecord& record : *sessions)
    status.sessions.push_back(SessionNow(record, model_));
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
