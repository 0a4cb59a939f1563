#include "daemon/serve/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "daemon/core/wire/message_fields.h"

namespace cgdebug::serve {
namespace {

std::string ReasonText(std::uint8_t reason_untrusted) {
  return std::string(layout::TextOf(static_cast<layout::LaneReason>(reason_untrusted)));
}

// What tells the slot from the others of its probe.
answers::Slot PlaceOf(const pipeline::SlotIdentity& slot, const pipeline::Registry& registry) {
  pipeline::SlotPlace place = registry.PlaceOf(slot);
  answers::Slot out;
  out.probe = slot.probe;
  out.graph = std::move(place.graph);
  out.qualifier = std::move(place.qualifier);
  out.graph_id = slot.registration.graph_id;
  out.invocation = slot.registration.invocation;
  out.shape.assign(slot.shape.begin(), slot.shape.end());
  out.order = slot.registration.order;
  out.in_body = slot.IsInBody();
  out.thread = slot.registration.thread;
  return out;
}

answers::FirstNonfinite FirstOf(const pipeline::SlotIdentity& slot,
                                const ring::FirstNonfinite& seen,
                                const pipeline::Registry& registry) {
  return {.slot = PlaceOf(slot, registry),
          .replay = seen.replay,
          .serial = seen.serial,
          .step = seen.step,
          .count = seen.count};
}

// The same of a message that names the fields alike.
template <typename Message>
void FillPlace(const pipeline::SlotIdentity& slot, const pipeline::Registry& registry,
               Message* message) {
  answers::Slot place = PlaceOf(slot, registry);
  message->set_graph(std::move(place.graph));
  message->set_qualifier(std::move(place.qualifier));
  message->set_graph_id(place.graph_id);
  message->set_invocation(place.invocation);
  message->mutable_shape()->Assign(place.shape.begin(), place.shape.end());
  message->set_slot(static_cast<std::uint32_t>(place.order));
  message->set_in_body(place.in_body);
  message->set_thread(place.thread);
}

template <typename Message>
void FillProbe(const pipeline::SlotIdentity& slot, Message* message) {
  message->set_session(slot.session->key);
  message->set_rank(slot.session->rank);
  message->set_probe(slot.probe);
}

// The parts that PrintLine, Loss and CompareFailed share.
template <typename Message>
void FillWhere(const pipeline::SlotIdentity& slot, const pipeline::Registry& registry,
               Message* message) {
  FillProbe(slot, message);
  FillPlace(slot, registry, message->mutable_slot());
  message->mutable_slot()->set_part(slot.part);
}

}  // namespace

void SetError(Answer* answer, v1::Error::Code code, std::string message) {
  answer->mutable_error()->set_code(code);
  answer->mutable_error()->set_message(std::move(message));
}

answers::Session SessionOf(const pipeline::SessionRecord& record,
                           const pipeline::Registry& registry) {
  const pipeline::SessionIdentity& session = *record.session;
  answers::Session out;
  static_cast<recording::Session&>(out) = session;
  out.key = session.key;
  out.local_rank = session.local_rank;
  out.local_world_size = session.local_world_size;
  out.ended_ns = record.ended_ns;
  out.state = static_cast<answers::SessionState>(record.state);
  out.probes = static_cast<std::uint32_t>(record.probes.all);
  out.slots = static_cast<std::uint32_t>(record.slot_count);
  for (const auto& [lane, slots] : record.lanes) {
    out.lanes.push_back({static_cast<layout::Lane>(lane.first), ReasonText(lane.second), slots});
  }
  out.replay = record.replay;
  out.calls = record.calls;
  out.step = record.facts.step;
  out.shm_bytes = record.facts.shm_bytes;
  if (record.state == pipeline::SessionState::kAlive) out.device_bytes = record.facts.device_bytes;
  out.counters = record.counters;
  out.nonfinite_probes = record.probes.nonfinite;
  out.mask_probes = record.probes.masks;
  out.first_mask = record.probes.first_mask;
  out.failed_probes = record.probes.failed;
  if (const auto& [slot, seen] = record.first_nan; slot != nullptr) {
    out.first_nan = FirstOf(*slot, seen, registry);
  }
  if (const auto& [slot, seen] = record.first_inf; slot != nullptr) {
    out.first_inf = FirstOf(*slot, seen, registry);
  }
  out.replicas = record.replicas;
  out.found_nan = record.findings[0];
  out.found_inf = record.findings[1];
  out.found_mismatch = record.findings[2];
  out.found_replica = record.findings[3];
  out.unseen_probes = record.probes.unseen;
  out.unseen = record.probes.unseen_names;
  out.not_seen = record.not_seen;
  out.moved_ns = record.moved_ns;
  return out;
}

answers::Probe ProbeOf(const pipeline::SlotRecord& record, const pipeline::Registry& registry,
                       bool with_last_stats) {
  const pipeline::SlotIdentity& slot = *record.slot;
  const layout::SlotFacts& registration = slot.registration;
  answers::Probe out;
  out.session = slot.session->key;
  out.slot = PlaceOf(slot, registry);
  out.slot.session = slot.session->label;
  out.slot.rank = slot.session->rank;
  out.slot.dtype_name = layout::DtypeName(slot.dtype);
  out.slot.device = slot.device;
  out.slot.shard = slot.shard;
  out.slot.part = slot.part;
  out.slot.payload_bytes = registration.payload_bytes;
  out.slot.site = slot.site;
  out.slot.op = slot.op;
  out.slot.details = slot.details;
  out.probe_id = registration.probe_id;
  out.lane = static_cast<layout::Lane>(registration.lane);
  out.lane_reason = ReasonText(registration.lane_reason);
  out.is_compiled = (registration.flags & layout::kSlotCompiled) != 0;
  const bool waits = registration.policy == static_cast<std::uint8_t>(layout::Policy::kWait) ||
                     layout::IsLossless(layout::PeriodsOf(registration), record.control);
  out.policy = waits ? layout::Policy::kWait : layout::Policy::kOverwrite;
  for (const auto& [flag, action] : {std::pair(layout::kActionPrint, answers::Action::kPrint),
                                     std::pair(layout::kActionRecord, answers::Action::kRecord),
                                     std::pair(layout::kActionCompare, answers::Action::kCompare),
                                     std::pair(layout::kActionStats, answers::Action::kStats)}) {
    if (slot.Has(flag)) out.actions.push_back(action);
  }
  out.capacity = slot.IsOnDevice() ? registration.device_capacity : registration.capacity;
  out.device_bytes = registration.device_bytes;
  if (record.last != nullptr) {
    out.replay = record.last->replay;
    out.iteration = record.last->iteration;
    if (with_last_stats) out.last_stats = record.last->stats;
  }
  out.counters = record.counters;
  out.last_timestamp_ns = record.last_timestamp_ns;
  out.reached = record.reached.replay;
  out.reached_ns = record.reached.time_ns;
  out.launch = slot.launch;
  out.retired = record.retired;
  if (record.firsts.nan.replay != 0) out.first_nan = FirstOf(slot, record.firsts.nan, registry);
  if (record.firsts.inf.replay != 0) out.first_inf = FirstOf(slot, record.firsts.inf, registry);
  if (slot.Has(layout::kActionCompare)) {
    const layout::Counters& counters = record.counters;
    const bool has_unread = counters.consumed + counters.lost() < counters.produced;
    out.verdict = WithPassed(record.verdict, counters.passed, has_unread);
  }
  if (record.control.mode != layout::ControlMode::kAsRegistered) out.control = record.control;
  return out;
}

Result<pipeline::ControlChange> ToChange(const v1::SetRequest& request, std::int64_t now_ns) {
  const v1::Control& control = request.control();
  constexpr std::uint64_t kLongestTtlMs = std::uint64_t{366} * 24 * 3600 * 1000;
  if (!v1::Control::Mode_IsValid(control.mode()) ||
      !v1::Control::Trigger_IsValid(control.trigger())) {
    return Error{"this daemon does not know that mode. Install the same cgdebug for both"};
  }
  const bool has_trigger = control.trigger() != v1::Control::ALWAYS;
  if (has_trigger && control.mode() != v1::Control::FULL) {
    return Error{"a condition says when the values are wanted: it goes with mode full"};
  }
  if (!std::isfinite(control.threshold()) || control.threshold() < 0) {
    return Error{"the threshold of abs_max is a finite number, 0 or more"};
  }
  if (control.until() != 0 && control.from() > control.until()) {
    return Error{fmt::format("replays {} to {}: the last is before the first", control.from(),
                             control.until())};
  }
  if (request.ttl_ms() > kLongestTtlMs) return Error{"the longest time to live is 366 days"};
  pipeline::ControlChange change;
  change.from_next = control.from() == 0 && control.until() != 0;
  change.control = wire::FieldsOf<layout::SlotControl>(control);
  change.control.from = std::max<std::uint64_t>(control.from(), 1);
  const auto ttl_ns = static_cast<std::int64_t>(request.ttl_ms()) * 1'000'000;
  change.control.expires_ns = ttl_ns == 0 ? 0 : now_ns + ttl_ns;
  return change;
}

void Fill(const pipeline::Snapshot& snapshot, const pipeline::Registry& registry,
          v1::Snapshot* message) {
  const pipeline::SlotIdentity& slot = *snapshot.slot;
  FillProbe(slot, message);
  FillPlace(slot, registry, message);
  message->set_session_label(slot.session->label);
  message->set_dtype(std::string(layout::DtypeName(slot.dtype)));
  message->set_device(slot.device);
  message->set_shard(slot.shard);
  message->set_part(slot.part);
  message->set_payload_bytes(slot.registration.payload_bytes);
  message->set_replay(snapshot.replay);
  message->set_iteration(snapshot.iteration);
  message->set_timestamp_ns(snapshot.timestamp_ns);
  message->set_step(snapshot.step);
  wire::FillMessage(snapshot.stats, message->mutable_stats());
  message->set_serial(snapshot.serial);
  message->set_ordinal(snapshot.ordinal);
}

answers::Kept KeptOf(const pipeline::StoredSnapshot& stored) {
  const pipeline::Snapshot& snapshot = *stored.snapshot;
  return {.slot = static_cast<std::uint32_t>(snapshot.slot->registration.order),
          .replay = snapshot.replay,
          .iteration = snapshot.iteration,
          .ordinal = snapshot.ordinal,
          .serial = snapshot.serial,
          .step = snapshot.step,
          .timestamp_ns = snapshot.timestamp_ns,
          .has_values = stored.payload != nullptr,
          // Without values only the statistics were compared.
          .unchanged = snapshot.has_values && !snapshot.changed,
          .stats = snapshot.stats};
}

namespace {

void FillSession(const pipeline::SessionPtr& session, const pipeline::Registry& registry,
                 v1::Session* message) {
  for (const pipeline::SessionRecord& record : registry.Sessions()) {
    if (record.session->uuid != session->uuid) continue;
    return wire::FillMessage(SessionOf(record, registry), message);
  }
  pipeline::SessionRecord forgotten;
  forgotten.session = session;
  forgotten.state = pipeline::SessionState::kDied;
  wire::FillMessage(SessionOf(forgotten, registry), message);
}

void FillPage(const pipeline::Rows& rows, const pipeline::Registry& registry, v1::Page* message) {
  const pipeline::Snapshot& one = *rows.snapshots.front();
  const pipeline::SlotIdentity& slot = *one.slot;
  message->set_session(slot.session->key);
  message->set_rank(slot.session->rank);
  message->set_replay(one.replay);
  message->set_step(one.step);
  message->set_timestamp_ns(one.timestamp_ns);
  message->set_serial(one.serial);
  FillPlace(slot, registry, message->mutable_slot());
  message->set_rows(static_cast<std::uint32_t>(rows.snapshots.size()));
  const pipeline::Snapshot* first = nullptr;
  bool is_mask = false;  // `first` is one
  for (const pipeline::SnapshotPtr& row : rows.snapshots) {
    const numerics::Stats& stats = row->stats;
    if (stats.nonfinite() == 0) continue;
    message->set_nonfinite(message->nonfinite() + 1);
    if (stats.nan != 0) message->set_with_nan(message->with_nan() + 1);
    if (row->is_mask) message->set_masks(message->masks() + 1);
    if (first != nullptr && (!is_mask || row->is_mask)) continue;
    first = row.get();
    is_mask = row->is_mask;
  }
  if (first == nullptr) return;
  message->set_first_bad(first->slot->probe);
  message->set_first_bad_op(first->slot->op);
  message->set_nan(first->stats.nan);
  message->set_pos_inf(first->stats.pos_inf);
  message->set_neg_inf(first->stats.neg_inf);
}

}  // namespace

void Fill(const pipeline::Event& event, const pipeline::Registry& registry,
          v1::TailReply* message) {
  if (const auto* snapshot = std::get_if<pipeline::SnapshotPtr>(&event.what)) {
    Fill(**snapshot, registry, message->mutable_snapshot());
  } else if (const auto* rows = std::get_if<pipeline::Rows>(&event.what)) {
    FillPage(*rows, registry, message->mutable_page());
  } else if (const auto* line = std::get_if<pipeline::PrintLine>(&event.what)) {
    FillWhere(*line->snapshot->slot, registry, message->mutable_print());
    message->mutable_print()->set_step(line->snapshot->step);
    message->mutable_print()->set_replay(line->snapshot->replay);
    message->mutable_print()->set_iteration(line->snapshot->iteration);
    message->mutable_print()->set_text(line->text);
  } else if (const auto* loss = std::get_if<pipeline::Loss>(&event.what)) {
    FillWhere(*loss->slot, registry, message->mutable_loss());
    message->mutable_loss()->set_rows(static_cast<std::uint32_t>(loss->row_count()));
    message->mutable_loss()->set_count(loss->count * std::max<std::uint64_t>(loss->row_count(), 1));
    message->mutable_loss()->set_before_replay(loss->before_replay);
    message->mutable_loss()->set_cause(std::string(loss->cause));
  } else if (const auto* failure = std::get_if<pipeline::CompareFailure>(&event.what)) {
    FillWhere(*failure->snapshot->slot, registry, message->mutable_compare_failed());
    message->mutable_compare_failed()->set_step(failure->snapshot->step);
    message->mutable_compare_failed()->set_replay(failure->snapshot->replay);
    message->mutable_compare_failed()->set_iteration(failure->snapshot->iteration);
    message->mutable_compare_failed()->set_text(failure->text);
  } else if (const auto* unequal = std::get_if<pipeline::Unequal>(&event.what)) {
    FillWhere(*unequal->snapshot->slot, registry, message->mutable_unequal());
    message->mutable_unequal()->set_step(unequal->snapshot->step);
    message->mutable_unequal()->set_replay(unequal->snapshot->replay);
    message->mutable_unequal()->set_iteration(unequal->snapshot->iteration);
    message->mutable_unequal()->set_text(unequal->text);
  } else if (const auto* frozen = std::get_if<pipeline::Frozen>(&event.what)) {
    FillWhere(*frozen->slot, registry, message->mutable_frozen());
    message->mutable_frozen()->set_step(-1);
    message->mutable_frozen()->set_replay(frozen->replay);
    message->mutable_frozen()->set_text(frozen->text);
  } else if (const auto* change = std::get_if<pipeline::SessionChange>(&event.what)) {
    message->mutable_session_change()->set_ended(change->ended);
    FillSession(event.session, registry, message->mutable_session_change()->mutable_session());
  }
}

}  // namespace cgdebug::serve
