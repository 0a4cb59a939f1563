#include "client/live/messages.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "client/live/ask.h"
#include "client/live/recordings.h"
#include "client/live/status.h"
#include "daemon/core/wire/message_fields.h"

namespace cgdebug::live {
namespace {

// kInvalid for a name that this version does not know.
layout::Dtype DtypeOf(const std::string& name) {
  const layout::DtypeInfo* info = layout::FindDtype(std::string_view(name));
  return info == nullptr ? layout::Dtype::kInvalid : info->dtype;
}

// The fields that Snapshot and Slot name alike.
template <typename Message>
void SetPlace(const Message& message, source::Slot* slot) {
  slot->graph_id = message.graph_id();
  slot->invocation = message.invocation();
  slot->shape.assign(message.shape().begin(), message.shape().end());
  slot->graph = message.graph();
  slot->order = message.slot();
  slot->qualifier = message.qualifier();
  slot->thread = message.thread();
}

// The fields that PrintLine, Loss and CompareFailed name alike.
template <typename Message>
Event EventAt(EventKind kind, const Message& message, std::uint64_t replay) {
  Event event{.kind = kind};
  event.tensor.session_key = message.session();
  event.tensor.slot.rank = message.rank();
  event.tensor.slot.probe = message.probe();
  SetPlace(message.slot(), &event.tensor.slot);
  event.tensor.snapshot.key.replay = replay;
  return event;
}

template <typename Message>
Event SaidAt(EventKind kind, const Message& message) {
  Event event = EventAt(kind, message, message.replay());
  event.tensor.slot.in_body = message.slot().in_body();
  event.tensor.slot.part = message.slot().part();
  event.tensor.snapshot.key.iteration = message.iteration();
  event.tensor.snapshot.step = message.step();
  event.text = message.text();
  return event;
}

}  // namespace

source::Tensor TensorOf(const v1::Snapshot& snapshot) {
  source::Tensor tensor;
  tensor.session_key = snapshot.session();
  SetPlace(snapshot, &tensor.slot);
  tensor.slot.in_body = snapshot.in_body();
  tensor.slot.probe = snapshot.probe();
  tensor.slot.session = snapshot.session_label();
  tensor.slot.rank = snapshot.rank();
  tensor.slot.device = snapshot.device();
  tensor.slot.shard = snapshot.shard();
  tensor.slot.part = snapshot.part();
  tensor.slot.dtype_name = snapshot.dtype();
  tensor.slot.dtype = DtypeOf(snapshot.dtype());
  tensor.slot.payload_bytes = snapshot.payload_bytes();
  tensor.snapshot.key = {snapshot.replay(), snapshot.ordinal(), snapshot.iteration()};
  tensor.snapshot.serial = snapshot.serial();
  tensor.snapshot.step = snapshot.step();
  tensor.snapshot.timestamp_ns = snapshot.timestamp_ns();
  tensor.snapshot.payload_bytes = snapshot.payload_bytes();
  tensor.stats = wire::FieldsOf<numerics::Stats>(snapshot.stats());
  return tensor;
}

source::Tensor TensorOf(client::Tensor tensor) {
  source::Tensor result = TensorOf(tensor.reply.snapshot());
  result.slot.site = tensor.reply.probe().site();
  result.slot.op = tensor.reply.probe().op();
  result.slot.details = tensor.reply.probe().details();
  result.snapshot.has_values = !tensor.reply.payload_dropped();
  result.payload = std::move(tensor.payload);
  return result;
}

Event EventOf(const v1::TailReply& message) {
  switch (message.event_case()) {
    case v1::TailReply::kSnapshot:
      return {.kind = EventKind::kSnapshot, .tensor = TensorOf(message.snapshot())};
    case v1::TailReply::kPrint:
      return SaidAt(EventKind::kPrint, message.print());
    case v1::TailReply::kCompareFailed:
      return SaidAt(EventKind::kCompareFailed, message.compare_failed());
    case v1::TailReply::kUnequal:
      return SaidAt(EventKind::kUnequal, message.unequal());
    case v1::TailReply::kFrozen:
      return SaidAt(EventKind::kFrozen, message.frozen());
    case v1::TailReply::kLoss: {
      Event event = EventAt(EventKind::kLoss, message.loss(), message.loss().before_replay());
      event.count = message.loss().count();
      event.rows = message.loss().rows();
      event.text = message.loss().cause();
      return event;
    }
    case v1::TailReply::kPage: {
      const v1::Page& page = message.page();
      Event event{.kind = EventKind::kPage};
      event.tensor.session_key = page.session();
      event.tensor.slot.rank = page.rank();
      SetPlace(page.slot(), &event.tensor.slot);
      event.tensor.slot.in_body = page.slot().in_body();
      event.tensor.snapshot.key.replay = page.replay();
      event.tensor.snapshot.serial = page.serial();
      event.tensor.snapshot.step = page.step();
      event.tensor.snapshot.timestamp_ns = page.timestamp_ns();
      event.rows = page.rows();
      event.bad.rows = page.nonfinite();
      event.bad.masks = page.masks();
      event.bad.with_nan = page.with_nan();
      event.bad.first = page.first_bad();
      event.bad.first_op = page.first_bad_op();
      event.bad.stats.nan = page.nan();
      event.bad.stats.pos_inf = page.pos_inf();
      event.bad.stats.neg_inf = page.neg_inf();
      return event;
    }
    case v1::TailReply::kSessionChange: {
      Event event{.session = wire::FieldsOf<Session>(message.session_change().session())};
      event.kind =
          message.session_change().ended() ? EventKind::kSessionEnded : EventKind::kSessionJoined;
      event.tensor.session_key = event.session.key;
      event.tensor.slot.rank = event.session.rank;
      event.tensor.snapshot.key.replay = event.session.replay;
      return event;
    }
    default:
      return {};
  }
}

void FillWhich(const WhichSlots& which, v1::Which* message) {
  message->set_graph(which.graph);
  if (!which.shape) return;
  message->mutable_shape()->mutable_sizes()->Assign(which.shape->begin(), which.shape->end());
}

namespace {

// A session that is forgotten between two parts of the answer makes it begin again.
constexpr int kMostBeginnings = 5;

template <typename Reply>
Result<decltype(Reply::value)> ValueOf(Result<Reply> reply) {
  if (!reply.ok()) return reply.error();
  return std::move(reply->value);
}

Result<std::vector<Probe>> ListAll(client::Client& client, v1::ProbesRequest request) {
  std::vector<std::vector<Probe>> parts;  // moved once: a probe is large, and they may be many
  std::size_t count = 0;
  int beginnings = 1;
  for (bool has_more = true; has_more;) {
    Result<answers::Probes> reply = Ask<answers::Probes>(client, request);
    const bool is_a_part = !request.after_session().empty();
    if (!reply.ok() && is_a_part && SaidNoSession(client) && beginnings++ < kMostBeginnings) {
      parts.clear();
      count = 0;
      request.clear_after_session();
      request.clear_after_slot();
      continue;
    }
    if (!reply.ok()) return reply.error();
    std::vector<Probe>& probes = reply->items;
    for (Probe& probe : probes) probe.slot.dtype = DtypeOf(probe.slot.dtype_name);
    has_more = reply->more && !probes.empty();
    if (has_more) {
      request.set_after_session(probes.back().session);
      request.set_after_slot(static_cast<std::uint32_t>(probes.back().slot.order));
    }
    count += probes.size();
    parts.push_back(std::move(probes));
  }
  if (parts.size() == 1) return std::move(parts.front());
  std::vector<Probe> all;
  all.reserve(count);
  for (std::vector<Probe>& part : parts) {
    std::ranges::move(part, std::back_inserter(all));
    part = {};
  }
  return all;
}

}  // namespace

Result<std::vector<Probe>> ListProbes(client::Client& client, const std::string& session,
                                      const std::vector<std::string>& globs, LastStats stats) {
  v1::ProbesRequest request;
  request.set_session(session);
  request.set_without_stats(stats == LastStats::kNone);
  request.mutable_probes()->Assign(globs.begin(), globs.end());
  Result<std::vector<Probe>> probes = ListAll(client, std::move(request));
  if (!probes.ok()) return probes;
  std::erase_if(*probes, [](const Probe& probe) { return probe.slot.op.is_no_row(); });
  return probes;
}

Result<std::vector<Probe>> ListProbesAndGaps(client::Client& client, const std::string& session) {
  v1::ProbesRequest request;
  request.set_session(session);
  request.set_without_stats(true);
  return ListAll(client, std::move(request));
}

Result<std::vector<OpLog>> ListOpLogs(client::Client& client, const std::string& session) {
  v1::OpLogsRequest request;
  request.set_session(session);
  return ValueOf(Ask<answers::OpLogs>(client, request));
}

Result<std::vector<Probe>> ListRows(client::Client& client, const OpLog& log) {
  v1::ProbesRequest request;
  request.set_session(log.session);
  request.set_without_stats(true);
  request.mutable_rows_of()->set_graph_id(log.graph_id);
  request.mutable_rows_of()->set_first_slot(log.first_slot);
  request.mutable_rows_of()->set_last_slot(log.last_slot);
  return ListAll(client, std::move(request));
}

Result<Controlled> SetControl(client::Client& client, const ControlRequest& request) {
  v1::SetRequest message;
  message.set_session(request.session);
  message.mutable_probes()->Assign(request.probes.begin(), request.probes.end());
  wire::FillMessage(request.control, message.mutable_control());
  message.set_ttl_ms(request.ttl_ms);
  FillWhich(request.which, message.mutable_which());
  return Ask<Controlled>(client, message);
}

Result<std::vector<Session>> ListSessions(client::Client& client) {
  v1::SessionsRequest request;
  request.set_include_dead(true);
  return ValueOf(Ask<answers::Sessions>(client, request));
}

Result<std::vector<SessionGraphs>> ListGraphs(client::Client& client, const std::string& session) {
  v1::GraphsRequest request;
  request.set_session(session);
  return ValueOf(Ask<answers::Graphs>(client, request));
}

Result<client::TailEnd> Tail(client::Client& client, const TailRequest& request,
                             const std::function<bool(const Event&)>& on_event) {
  v1::TailRequest message;
  message.set_session(request.session);
  message.mutable_probes()->Assign(request.probes.begin(), request.probes.end());
  message.set_last(request.last);
  message.set_follow(request.follow);
  message.set_only(static_cast<v1::TailRequest::Only>(request.only));
  message.set_until_exit(request.until_exit);
  for (const auto& [first, last] : request.ranks) {
    v1::TailRequest::Ranks* const ranks = message.add_ranks();
    ranks->set_first(first);
    ranks->set_last(last);
  }
  message.set_pages(request.pages);
  if (!request.which.selects_all()) FillWhich(request.which, message.mutable_which());
  return client.Tail(message, [&](const v1::TailReply& reply) { return on_event(EventOf(reply)); });
}

Result<Recording> StartRecording(client::Client& client, const RecordRequest& request) {
  using Message = v1::RecordStartRequest;
  Message message;
  message.set_directory(request.directory);
  message.set_session(request.session);
  message.mutable_probes()->Assign(request.probes.begin(), request.probes.end());
  message.set_replays(request.replays);
  message.set_duration_s(request.duration_s);
  message.set_align(request.align);
  message.set_max_bytes(request.max_bytes);
  message.set_run_id(request.run_id);
  if (request.durability) {
    message.set_durability(static_cast<Message::Durability>(*request.durability));
  }
  message.set_roll_bytes(request.roll_bytes);
  message.set_lossless(static_cast<Message::Lossless>(request.lossless));
  message.set_owner_pid(request.owner_pid);
  if (request.min_free_bytes) message.set_min_free_bytes(*request.min_free_bytes);
  FillWhich(request.which, message.mutable_which());
  return ValueOf(Ask<answers::RecordStarted>(client, message));
}

Result<std::vector<Recording>> StopRecording(client::Client& client, const std::string& recording,
                                             bool job_ended) {
  v1::RecordStopRequest request;
  request.set_recording(recording);
  request.set_job_ended(job_ended);
  return ValueOf(Ask<answers::RecordStopped>(client, request));
}

Result<std::vector<Recording>> ListRecordings(client::Client& client) {
  return ValueOf(Ask<answers::Recordings>(client, v1::RecordListRequest()));
}

Result<Recording> Freeze(client::Client& client, const std::string& session,
                         const std::string& directory, const std::vector<std::string>& probes,
                         std::uint64_t last, std::uint64_t max_bytes) {
  v1::FreezeRequest request;
  request.set_session(session);
  request.set_directory(directory);
  request.mutable_probes()->Assign(probes.begin(), probes.end());
  request.set_last(last);
  request.set_max_bytes(max_bytes);
  return ValueOf(Ask<answers::Frozen>(client, request));
}

Result<Status> GetStatus(client::Client& client, const std::string& session) {
  v1::StatusRequest request;
  request.set_session(session);
  return Ask<Status>(client, request);
}

Result<Pruned> Prune(client::Client& client) {
  constexpr std::chrono::seconds kMostWait{5};
  constexpr std::chrono::milliseconds kPoll{5};
  Result<Pruned> pruned = Ask<Pruned>(client, v1::PruneRequest());
  if (!pruned.ok() || pruned->sessions == 0) return pruned;
  // The daemon answers first.
  const auto deadline = std::chrono::steady_clock::now() + kMostWait;
  while (std::chrono::steady_clock::now() < deadline) {
    const Result<std::vector<Session>> left = ListSessions(client);
    if (!left.ok()) return left.error();
    if (std::ranges::all_of(
            *left, [](const Session& session) { return session.state == SessionState::kAlive; })) {
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return pruned;
}

Result<std::string> Shutdown(client::Client& client, bool force) {
  v1::ShutdownRequest request;
  request.set_force(force);
  const auto reply = client.Ask<v1::ShutdownReply>(request);
  if (!reply.ok()) return reply.error();
  return reply->message();
}

Result<bool> Sync(client::Client& client) {
  const auto reply = client.Ask<v1::SyncReply>(v1::SyncRequest());
  if (!reply.ok()) return reply.error();
  return reply->complete();
}

bool SaidNoSession(const client::Client& client) {
  return client.last_error().code() == v1::Error::NO_SESSION;
}

}  // namespace cgdebug::live
