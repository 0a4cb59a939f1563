#include "daemon/serve/requests/get.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/wire/message_fields.h"
#include "daemon/serve/candidates.h"
#include "daemon/serve/messages.h"
#include "daemon/serve/selection.h"

namespace cgdebug::serve {
namespace {

using pipeline::SessionRecord;
using pipeline::SlotRecord;
using pipeline::StoredSnapshot;

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

// Requires: there is a candidate.
void FillGet(const v1::GetRequest& request, const Model& model, Meant* meant, Answer* answer,
             pipeline::PayloadPtr* payload) {
  std::vector<Candidate>* candidates = &meant->candidates;
  const Candidate* owner = nullptr;
  const std::int64_t replay = request.replay() == 0 ? -1 : request.replay();
  const When when = WhenOf(request);
  PreferLiving(candidates, when);
  if (const std::string ambiguous =
          Ambiguous(*candidates, when, *model.registry, SameSession(request.session()));
      !ambiguous.empty()) {
    return SetError(answer, v1::Error::NO_SNAPSHOT, ambiguous);
  }
  const StoredSnapshot* stored =
      replay > 0 ? FindReplay(*candidates, when, &owner)
                 : FindFromEnd(*candidates, -static_cast<std::uint64_t>(replay), &owner);
  if (const Candidate* left = FindLeftOnDevice(*candidates, when, stored, owner)) {
    return SetError(answer, v1::Error::NO_SNAPSHOT,
                    WhyLeftOnDevice(request, left->slot, meant->state));
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
  Fill(*stored->snapshot, *model.registry, reply->mutable_snapshot());
  wire::FillMessage(ProbeNow(owner->slot, model), reply->mutable_probe());
  reply->set_payload_dropped(stored->payload == nullptr);
  if (stored->payload == nullptr || request.metadata_only() || stored->payload->empty()) return;
  reply->set_payload_bytes(stored->payload->size());
  *payload = stored->payload;
}

}  // namespace

bool AnswerGet(const v1::GetRequest& request, const Model& model, bool may_wait, Answer* answer,
               pipeline::PayloadPtr* payload) {
  auto sessions = SelectSessions(*model.registry, request.session(), answer->mutable_error());
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
  std::optional<Meant> meant = MeantBy(request, *sessions, may_wait, model);
  if (!meant) return false;
  if (!meant->has_probe) {
    SetNotMeant(request, *sessions, *model.registry, answer->mutable_error());
  } else if (!meant->candidates.empty()) {
    FillGet(request, model, &*meant, answer, payload);
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

}  // namespace cgdebug::serve
