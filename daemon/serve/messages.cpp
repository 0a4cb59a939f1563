#include "daemon/serve/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "daemon/core/wire/message_fields.h"

namespace cgdebug::serve {
namespace {

std::string ReasonText(std::uint8_t reason_untrusted) {
  return std::string(layout::TextOf(static_cast<layout::LaneReason>(reason_untrusted)));
}

// What tells the slot from the others of its probe.
template <typename Message>
void FillPlace(const pipeline::SlotIdentity& slot, const pipeline::Registry& registry,
               Message* message) {
  pipeline::SlotPlace place = registry.PlaceOf(slot);
  message->set_graph(std::move(place.graph));
  message->set_qualifier(std::move(place.qualifier));
  message->set_graph_id(slot.registration.graph_id);
  message->set_invocation(slot.registration.invocation);
  message->mutable_shape()->Assign(slot.shape.begin(), slot.shape.end());
  message->set_slot(static_cast<std::uint32_t>(slot.registration.order));
}

// What a probe and a snapshot say of the tensor.
template <typename Message>
void FillTensor(const pipeline::SlotIdentity& slot, Message* message) {
  message->set_session_label(slot.session->label);
  message->set_dtype(std::string(layout::DtypeName(slot.dtype)));
  message->set_device(slot.device);
  message->set_shard(slot.shard);
  message->set_part(slot.part);
  message->set_payload_bytes(slot.registration.payload_bytes);
}

void FillFirst(const pipeline::SlotIdentity& slot, const ring::FirstNonfinite& seen,
               const pipeline::Registry& registry, v1::FirstNonfinite* message) {
  message->set_probe(slot.probe);
  message->set_replay(seen.replay);
  message->set_step(seen.step);
  message->set_count(seen.count);
  message->set_serial(seen.serial);
  message->set_in_body(slot.IsInBody());
  FillPlace(slot, registry, message);
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
  message->mutable_slot()->set_in_body(slot.IsInBody());
  message->mutable_slot()->set_part(slot.part);
}

}  // namespace

void SetError(v1::Response* response, v1::Error::Code code, std::string message) {
  response->mutable_error()->set_code(code);
  response->mutable_error()->set_message(std::move(message));
}

void Fill(const pipeline::SessionRecord& record, const pipeline::Registry& registry,
          v1::Session* message) {
  const pipeline::SessionIdentity& session = *record.session;
  message->set_key(session.key);
  FillMessage<recording::Session>(session, message);
  message->set_local_rank(session.local_rank);
  message->set_local_world_size(session.local_world_size);
  message->set_state(static_cast<v1::Session::State>(record.state));
  message->set_probe_count(static_cast<std::uint32_t>(record.probe_count));
  message->set_slot_count(static_cast<std::uint32_t>(record.slot_count));
  message->set_replay(record.replay);
  message->set_moved_ns(record.moved_ns);
  message->set_calls(record.calls);
  FillMessage(record.counters, message->mutable_counters());
  message->set_ended_ns(record.ended_ns);
  message->set_shm_bytes(record.shm_bytes);
  if (record.state == pipeline::SessionState::kAlive) {
    message->set_device_bytes(record.device_bytes);
  }
  message->set_step(record.step);
  message->set_nonfinite_probes(record.nonfinite_probes);
  message->set_failed_probes(record.failed_probes);
  message->set_found_nan(record.findings[0]);
  message->set_found_inf(record.findings[1]);
  message->set_found_mismatch(record.findings[2]);
  message->set_found_replica(record.findings[3]);
  message->mutable_replicas()->set_compared(record.replicas.compared);
  message->mutable_replicas()->set_different(record.replicas.different);
  message->mutable_replicas()->set_close(record.replicas.close);
  message->mutable_replicas()->set_incomplete(record.replicas.incomplete);
  message->mutable_replicas()->set_waiting(record.replicas.waiting);
  for (const layout::NotSeen& one : record.not_seen) FillMessage(one, message->add_not_seen());
  message->mutable_replicas()->set_unknown(record.replicas.unknown);
  message->set_unseen_probes(record.unseen_probes);
  message->mutable_unseen()->Assign(record.unseen.begin(), record.unseen.end());
  if (const auto& [slot, seen] = record.first_nan; slot != nullptr) {
    FillFirst(*slot, seen, registry, message->mutable_first_nan());
  }
  if (const auto& [slot, seen] = record.first_inf; slot != nullptr) {
    FillFirst(*slot, seen, registry, message->mutable_first_inf());
  }
  for (const auto& [lane, slots] : record.lanes) {
    v1::LaneUse* use = message->add_lanes();
    use->set_lane(static_cast<v1::ProbeInfo::Lane>(lane.first));
    use->set_reason(ReasonText(lane.second));
    use->set_slots(slots);
  }
}

void Fill(const pipeline::SlotRecord& record, const pipeline::Registry& registry,
          v1::ProbeInfo* message, bool with_last_stats) {
  const pipeline::SlotIdentity& slot = *record.slot;
  const layout::SlotFacts& registration = slot.registration;
  FillPlace(slot, registry, message);
  FillTensor(slot, message);
  message->set_session(slot.session->key);
  message->set_rank(slot.session->rank);
  message->set_name(slot.probe);
  message->set_probe_id(registration.probe_id);
  message->set_lane(static_cast<v1::ProbeInfo::Lane>(registration.lane));
  message->set_lane_reason(ReasonText(registration.lane_reason));
  const bool waits = registration.policy == static_cast<std::uint8_t>(layout::Policy::kWait) ||
                     layout::IsLossless(layout::PeriodsOf(registration), record.control);
  message->set_policy(waits ? v1::ProbeInfo::WAIT : v1::ProbeInfo::OVERWRITE);
  if (slot.Has(layout::kActionPrint)) message->add_actions(v1::ProbeInfo::PRINT);
  if (slot.Has(layout::kActionRecord)) message->add_actions(v1::ProbeInfo::RECORD);
  if (slot.Has(layout::kActionCompare)) message->add_actions(v1::ProbeInfo::COMPARE);
  if (slot.Has(layout::kActionStats)) message->add_actions(v1::ProbeInfo::STATS);
  message->set_in_body(slot.IsInBody());
  message->set_capacity(slot.IsOnDevice() ? registration.device_capacity : registration.capacity);
  message->set_device_bytes(registration.device_bytes);
  if (record.last != nullptr) {
    message->set_replay(record.last->replay);
    message->set_iteration(record.last->iteration);
    if (with_last_stats) FillMessage(record.last->stats, message->mutable_last_stats());
  }
  FillMessage(record.counters, message->mutable_counters());
  message->set_last_timestamp_ns(record.last_timestamp_ns);
  message->set_site(slot.site);
  message->set_op(slot.op);
  message->set_details(slot.details);
  message->set_reached(record.reached.replay);
  message->set_reached_ns(record.reached.time_ns);
  message->set_launch(slot.launch);
  message->set_retired(record.retired);
  if (record.firsts.nan.replay != 0) {
    FillFirst(slot, record.firsts.nan, registry, message->mutable_first_nan());
  }
  if (record.firsts.inf.replay != 0) {
    FillFirst(slot, record.firsts.inf, registry, message->mutable_first_inf());
  }
  if (slot.Has(layout::kActionCompare)) {
    const layout::Counters& counters = record.counters;
    const bool has_unread = counters.consumed + counters.lost() < counters.produced;
    FillMessage(WithPassed(record.verdict, counters.passed, has_unread),
                message->mutable_verdict());
  }
  if (record.control.mode != layout::ControlMode::kAsRegistered) {
    FillMessage(record.control, message->mutable_control());
  }
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
  change.control = FieldsOf<layout::SlotControl>(control);
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
  FillTensor(slot, message);
  message->set_in_body(slot.IsInBody());
  message->set_replay(snapshot.replay);
  message->set_iteration(snapshot.iteration);
  message->set_timestamp_ns(snapshot.timestamp_ns);
  message->set_step(snapshot.step);
  FillMessage(snapshot.stats, message->mutable_stats());
  message->set_serial(snapshot.serial);
  message->set_ordinal(snapshot.ordinal);
}

void Fill(const pipeline::StoredSnapshot& stored, v1::HistoryReply::Entry* message) {
  const pipeline::Snapshot& snapshot = *stored.snapshot;
  message->set_slot(static_cast<std::uint32_t>(snapshot.slot->registration.order));
  message->set_replay(snapshot.replay);
  message->set_iteration(snapshot.iteration);
  message->set_ordinal(snapshot.ordinal);
  message->set_serial(snapshot.serial);
  message->set_step(snapshot.step);
  message->set_timestamp_ns(snapshot.timestamp_ns);
  message->set_has_values(stored.payload != nullptr);
  // Without values only the statistics were compared.
  message->set_unchanged(snapshot.has_values && !snapshot.changed);
  FillMessage(snapshot.stats, message->mutable_stats());
}

namespace {

void FillSession(const pipeline::SessionPtr& session, const pipeline::Registry& registry,
                 v1::Session* message) {
  for (const pipeline::SessionRecord& record : registry.Sessions()) {
    if (record.session->uuid == session->uuid) return Fill(record, registry, message);
  }
  pipeline::SessionRecord forgotten;
  forgotten.session = session;
  forgotten.state = pipeline::SessionState::kDied;
  Fill(forgotten, registry, message);
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
  message->mutable_slot()->set_in_body(slot.IsInBody());
  message->set_rows(static_cast<std::uint32_t>(rows.snapshots.size()));
  const pipeline::Snapshot* first = nullptr;
  bool is_mask = false;  // `first` is only_neg_inf
  for (const pipeline::SnapshotPtr& row : rows.snapshots) {
    const numerics::Stats& stats = row->stats;
    if (stats.nonfinite() == 0) continue;
    message->set_nonfinite(message->nonfinite() + 1);
    if (stats.nan != 0) message->set_with_nan(message->with_nan() + 1);
    const bool is_only_neg_inf = stats.nan == 0 && stats.pos_inf == 0;
    if (is_only_neg_inf) message->set_only_neg_inf(message->only_neg_inf() + 1);
    if (first != nullptr && (!is_mask || is_only_neg_inf)) continue;
    first = row.get();
    is_mask = is_only_neg_inf;
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
