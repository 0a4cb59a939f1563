#include "daemon/serve/requests/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <utility>

#include "daemon/core/base/duration.h"
#include "daemon/core/base/glob.h"
#include "daemon/record/freeze/freeze.h"
#include "daemon/serve/messages.h"
#include "daemon/serve/selection.h"

namespace cgdebug::serve {
namespace {

using pipeline::SessionRecord;

constexpr auto kSyncPatience = std::chrono::seconds(2);

// The daemon's own working directory means nothing to a client.
bool CheckDirectory(const std::string& directory, Answer* answer) {
  if (std::filesystem::path(directory).is_absolute()) return true;
  SetError(
      answer, v1::Error::BAD_REQUEST,
      fmt::format("the directory of a recording must be an absolute path, not '{}'", directory));
  return false;
}

bool CheckMaxBytes(std::uint64_t max_bytes, Answer* answer) {
  if (max_bytes == 0 || max_bytes >= recording::kMinMaxBytes) return true;
  SetError(answer, v1::Error::BAD_REQUEST,
           fmt::format("a recording of at most {} bytes holds nothing; the least is {}", max_bytes,
                       recording::kMinMaxBytes));
  return false;
}

bool FillLimits(const v1::RecordStartRequest& request, pipeline::RecordRequest* record,
                Answer* answer) {
  record->replays = request.replays();
  record->align = request.align();
  record->max_bytes = request.max_bytes();
  if (!CheckMaxBytes(record->max_bytes, answer)) return false;
  constexpr double kLongest = std::chrono::duration<double>(kLongestDuration).count();
  if (!(request.duration_s() >= 0 && request.duration_s() <= kLongest)) {
    SetError(
        answer, v1::Error::BAD_REQUEST,
        fmt::format("a recording cannot last {} s; it may last 0 s, which means no limit, to {}",
                    request.duration_s(), kLongest));
    return false;
  }
  record->duration = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(request.duration_s()));
  return true;
}

bool FillWriting(const v1::RecordStartRequest& request, pipeline::RecordRequest* record,
                 Answer* answer) {
  record->roll_bytes = request.roll_bytes();
  if (record->roll_bytes != 0 && record->roll_bytes < recording::kMinRollBytes) {
    SetError(answer, v1::Error::BAD_REQUEST,
             fmt::format("a segment file of {} bytes is too small. Type: --roll-size 1M, or more",
                         record->roll_bytes));
    return false;
  }
  if (request.has_min_free_bytes()) record->min_free_bytes = request.min_free_bytes();
  if (!request.has_durability()) return true;
  if (!v1::RecordStartRequest::Durability_IsValid(request.durability())) {
    SetError(answer, v1::Error::BAD_REQUEST,
             fmt::format("unknown durability {}: use none, interval or each",
                         static_cast<int>(request.durability())));
    return false;
  }
  record->durability = static_cast<recording::Durability>(request.durability());
  return true;
}

pipeline::LosslessJobs ToLossless(v1::RecordStartRequest::Lossless lossless) {
  switch (lossless) {
    case v1::RecordStartRequest::NEVER:
      return pipeline::LosslessJobs::kNone;
    case v1::RecordStartRequest::ALWAYS:
      return pipeline::LosslessJobs::kEvery;
    default:
      return pipeline::LosslessJobs::kNew;
  }
}

// Uuid and number of the graphs that have this name now.
std::set<std::pair<std::string, std::uint64_t>> GraphsNamed(const pipeline::Registry& registry,
                                                            const std::string& label) {
  std::set<std::pair<std::string, std::uint64_t>> graphs;
  if (label.empty()) return graphs;
  for (const SessionRecord& session : registry.Sessions()) {
    for (const pipeline::SlotRecord& slot : registry.Slots(session.session)) {
      if (registry.PlaceOf(*slot.slot).graph != label) continue;
      graphs.emplace(session.session->uuid, slot.slot->registration.graph_id);
    }
  }
  return graphs;
}

}  // namespace

void AnswerRecordStart(const v1::RecordStartRequest& request, const Model& model, Answer* answer) {
  if (!CheckDirectory(request.directory(), answer)) return;
  // Afterwards all jobs that are there are known.
  model.reads->AtHeads([](const pipeline::RingHeads&) {});
  pipeline::RecordRequest record;
  record.directory = request.directory();
  record.probes.assign(request.probes().begin(), request.probes().end());
  if (!FillLimits(request, &record, answer)) return;
  if (!FillWriting(request, &record, answer)) return;
  record.which = ToWhich(request.which());
  record.graphs = GraphsNamed(*model.registry, record.which.graph);
  record.run_id = request.run_id();
  record.owner = request.owner_pid();
  record.lossless = ToLossless(request.lossless());
  if (request.has_rank()) record.rank = request.rank();
  if (!request.session().empty()) {
    const auto sessions =
        SelectSessions(*model.registry, request.session(), answer->mutable_error());
    if (!sessions) return;
    answer->clear_error();
    for (const SessionRecord& session : *sessions) {
      if (session.state == pipeline::SessionState::kAlive) {
        record.sessions.insert(session.session->uuid);
      }
    }
    if (record.sessions.empty()) {
      return SetError(
          answer, v1::Error::NO_SESSION,
          fmt::format("session '{}' has ended: nothing new comes from it. What it left: "
                      "cgdebug-cli freeze '{}' -o {}",
                      request.session(), request.session(), request.directory()));
    }
  }
  const auto info = model.recorder->Start(std::move(record));
  if (!info.ok()) return SetError(answer, v1::Error::BAD_REQUEST, info.error().message);
  answer->Set(answers::RecordStarted{*info});
}

void AnswerRecordStop(const v1::RecordStopRequest& request, const Model& model, Answer* answer) {
  const auto reason =
      request.job_ended() ? recording::StopReason::kJobEnded : recording::StopReason::kRequested;
  const auto infos = model.recorder->Stop(request.recording(), reason);
  if (!infos.ok()) return SetError(answer, v1::Error::NO_RECORDING, infos.error().message);
  answer->Set(answers::RecordStopped{*infos});
}

void AnswerRecordList(const Model& model, Answer* answer) {
  answer->Set(answers::Recordings{model.recorder->List()});
}

void AnswerSync(const Model& model, Answer* answer) {
  v1::SyncReply* reply = answer->message()->mutable_sync();
  reply->set_complete(model.reads->DrainWithin([](const pipeline::RingHeads&) {}, kSyncPatience) &&
                      model.recorder->WaitForFinishing(kSyncPatience));
}

void AnswerFreeze(const v1::FreezeRequest& request, const Model& model, Answer* answer) {
  if (!CheckDirectory(request.directory(), answer)) return;
  model.reads->Drain([](const pipeline::RingHeads&) {}, kSyncPatience);
  const auto sessions = SelectSessions(*model.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  if (sessions->empty()) return SetNoSession(request.session(), *sessions, answer->mutable_error());
  answer->clear_error();
  std::vector<SessionRecord> meant = *sessions;
  if (request.session().empty()) {
    // The newest job, of those alive if there are any: all its ranks, since its last restart.
    const auto alive = std::ranges::find(sessions->rbegin(), sessions->rend(),
                                         pipeline::SessionState::kAlive, &SessionRecord::state);
    const pipeline::SessionPtr first =
        alive == sessions->rend() ? sessions->back().session : alive->session;
    std::erase_if(meant, [&](const SessionRecord& record) {
      const pipeline::SessionIdentity& one = *record.session;
      const bool is_rank_of_it = first->rank >= 0 && one.rank >= 0 && one.run_id == first->run_id &&
                                 one.restart_count == first->restart_count;
      return record.session != first && !is_rank_of_it;
    });
  }
  pipeline::FreezeRequest freeze;
  freeze.directory = request.directory();
  freeze.probes.assign(request.probes().begin(), request.probes().end());
  freeze.last = request.last();
  freeze.max_bytes = request.max_bytes();
  if (!CheckMaxBytes(freeze.max_bytes, answer)) return;
  for (const SessionRecord& session : meant) {
    const auto slots = model.registry->Slots(session.session);
    freeze.slots.insert(freeze.slots.end(), slots.begin(), slots.end());
  }
  freeze.sessions = meant;
  const Result<Selector> selector = Selector::Parse(freeze.probes);
  if (!selector.ok()) return SetError(answer, v1::Error::BAD_REQUEST, selector.error().message);
  std::vector<std::string> names;
  for (const pipeline::SlotRecord& slot : freeze.slots) names.push_back(slot.slot->probe);
  const auto matches = [&](const std::string& name) { return selector->Matches(name); };
  if (!freeze.probes.empty() && std::ranges::none_of(names, matches)) {
    return SetNoProbe(fmt::format("{}", fmt::join(freeze.probes, " ")), request.session(), meant,
                      names, answer->mutable_error());
  }
  const auto info = pipeline::Freeze(freeze, model.recorder->options(), *model.store, model.reads);
  if (!info.ok()) return SetError(answer, v1::Error::BAD_REQUEST, info.error().message);
  answer->Set(answers::Frozen{*info});
}

}  // namespace cgdebug::serve
