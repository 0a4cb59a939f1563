#include "client/cli/views/json.h"

#include <fmt/format.h>

#include <string_view>
#include <type_traits>

#include "client/cli/views/session_text.h"
#include "client/cli/views/snapshot_text.h"
#include "client/cli/views/tensor_json.h"
#include "client/live/messages.h"
#include "daemon/core/recording/types.h"
#include "daemon/core/wire/message_fields.h"
#include "proto/layout/counters.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::cli {
namespace {

// An enum of the wire as one of proto/layout, which has the names.
template <typename Layout, typename Wire>
std::string_view NameOf(Wire value) {
  return layout::NameOf(static_cast<Layout>(value));
}

template <typename Repeated>
Json Array(const Repeated& values) {
  Json array = Json::array();
  for (const auto& value : values) array.push_back(value);
  return array;
}

Json FirstNonfinite(const v1::FirstNonfinite& first) {
  if (first.replay() == 0) return nullptr;
  return {{"probe", first.probe()},        {"invocation", first.invocation()},
          {"graph", first.graph()},        {"graph_id", first.graph_id()},
          {"shape", Array(first.shape())}, {"slot", first.slot()},
          {"replay", first.replay()},      {"serial", first.serial()},
          {"step", first.step()},          {"count", first.count()}};
}

// Of which slot an event is; of a client's own loss, none.
void AddSlot(const v1::Slot& slot, Json* json) {
  json->update({{"graph", slot.graph()},
                {"graph_id", slot.graph_id()},
                {"invocation", slot.invocation()},
                {"shape", Array(slot.shape())},
                {"slot", slot.slot()}});
}

// Of a struct that lists its fields, in the order of the list.
template <typename T>
Json FieldsJson(const T& fields) {
  Json json = Json::object();
  T::ForEachField(fields, [&](const layout::Field& field, const auto& value) {
    json[field.name] = FieldJson(value);
  });
  return json;
}

template <typename Repeated>
Json ArrayOf(const Repeated& messages) {
  Json array = Json::array();
  for (const auto& message : messages) array.push_back(ToJson(message));
  return array;
}

}  // namespace

Json ToJson(const v1::Counters& counters) {
  return FieldsJson(FieldsOf<layout::Counters>(counters));
}

Json ToJson(const v1::Stats& stats) { return ToJson(live::StatsOf(stats)); }

Json ToJson(const v1::Session& session) {
  Json lanes = Json::array();
  for (const v1::LaneUse& use : session.lanes()) {
    lanes.push_back(
        {{"lane", LaneName(use.lane())}, {"reason", use.reason()}, {"slots", use.slots()}});
  }
  Json json = {{"key", session.key()}};
  json.update(FieldsJson(FieldsOf<recording::Session>(session)));
  json.erase("id");
  json.update({{"ended_ns", session.ended_ns()},
               {"state", StateText(session.state())},
               {"probes", session.probe_count()},
               {"slots", session.slot_count()},
               {"lanes", std::move(lanes)},
               {"replay", session.replay()},
               {"step", session.step()},
               {"shm_bytes", session.shm_bytes()},
               {"counters", ToJson(session.counters())},
               {"nonfinite_probes", session.nonfinite_probes()},
               {"failed_probes", session.failed_probes()},
               {"first_nan", FirstNonfinite(session.first_nan())},
               {"first_inf", FirstNonfinite(session.first_inf())}});
  return json;
}

Json ToJson(const v1::Control& control) {
  return {{"mode", NameOf<layout::ControlMode>(control.mode())},
          {"every", control.every()},
          {"from", control.from()},
          {"until", control.until()},
          {"on", NameOf<layout::ControlTrigger>(control.trigger())},
          {"threshold", JsonNumber(control.threshold())},
          {"expires_ns", control.expires_ns()}};
}

Json ToJson(const v1::Verdict& verdict) {
  return {{"state", NameOf<layout::VerdictState>(verdict.state())},
          {"compared", verdict.compared()},
          {"mismatched", verdict.mismatched()},
          {"lost", verdict.lost()},
          {"first_failed_replay", verdict.first_failed_replay()},
          {"text", verdict.text()}};
}

Json ToJson(const v1::ProbeInfo& probe) {
  Json json = {{"session", probe.session()},
               {"session_label", probe.session_label()},
               {"rank", probe.rank()},
               {"name", probe.name()},
               {"slot", probe.slot()},
               {"probe_id", probe.probe_id()},
               {"graph", probe.graph()},
               {"graph_id", probe.graph_id()},
               {"invocation", probe.invocation()},
               {"dtype", probe.dtype()},
               {"shape", Array(probe.shape())},
               {"device", probe.device()},
               {"lane", LaneName(probe.lane())},
               {"lane_reason", probe.lane_reason()},
               {"policy", PolicyName(probe.policy())},
               {"actions", ActionsOf(probe)},
               {"capacity", probe.capacity()},
               {"payload_bytes", probe.payload_bytes()},
               {"replay", probe.replay()},
               {"last_timestamp_ns", probe.last_timestamp_ns()},
               {"site", probe.site()},
               {"shard", probe.shard()},
               {"retired", probe.retired()},
               {"counters", ToJson(probe.counters())}};
  json["first_nan"] = FirstNonfinite(probe.first_nan());
  json["first_inf"] = FirstNonfinite(probe.first_inf());
  json["verdict"] = probe.has_verdict() ? ToJson(probe.verdict()) : Json(nullptr);
  json["control"] = probe.has_control() ? ToJson(probe.control()) : Json(nullptr);
  json["last_stats"] = probe.has_last_stats() ? ToJson(probe.last_stats()) : Json(nullptr);
  return json;
}

Json ToJson(const v1::Snapshot& snapshot) { return ToJson(live::TensorOf(snapshot)); }

Json ToJson(const v1::TailReply& event) {
  const auto named = [&event](const char* kind, Json fields) {
    Json json = {{"event", kind}};
    json.update(fields);
    if (event.has_print()) AddSlot(event.print().slot(), &json);
    if (event.has_loss() && event.loss().has_slot()) AddSlot(event.loss().slot(), &json);
    if (event.has_compare_failed()) AddSlot(event.compare_failed().slot(), &json);
    return json;
  };
  switch (event.event_case()) {
    case v1::TailReply::kSnapshot:
      return named("snapshot", ToJson(event.snapshot()));
    case v1::TailReply::kPrint:
      return named("print", {{"session", event.print().session()},
                             {"rank", event.print().rank()},
                             {"probe", event.print().probe()},
                             {"replay", event.print().replay()},
                             {"step", event.print().step()},
                             {"text", event.print().text()}});
    case v1::TailReply::kLoss:
      return named("loss", {{"session", event.loss().session()},
                            {"rank", event.loss().rank()},
                            {"probe", event.loss().probe()},
                            {"count", event.loss().count()},
                            {"before_replay", event.loss().before_replay()},
                            {"cause", event.loss().cause()}});
    case v1::TailReply::kCompareFailed:
      return named("compare_failed", {{"session", event.compare_failed().session()},
                                      {"rank", event.compare_failed().rank()},
                                      {"probe", event.compare_failed().probe()},
                                      {"replay", event.compare_failed().replay()},
                                      {"step", event.compare_failed().step()},
                                      {"text", event.compare_failed().text()}});
    case v1::TailReply::kSessionChange:
      return named(event.session_change().ended() ? "session_ended" : "session_joined",
                   ToJson(event.session_change().session()));
    case v1::TailReply::kCaughtUp:
      return named("caught_up", Json::object());
    case v1::TailReply::EVENT_NOT_SET:
      break;
  }
  return named("unknown", Json::object());
}

Json ToJson(const v1::Recording& recording) {
  Json sessions = Json::array();
  for (const std::string& session : recording.sessions()) sessions.push_back(session);
  Json probes = Json::array();
  for (const std::string& probe : recording.probes()) probes.push_back(probe);
  return {{"id", recording.id()},
          {"directory", recording.directory()},
          {"active", recording.active()},
          {"state", recording.state()},
          {"error", recording.error()},
          {"sessions", std::move(sessions)},
          {"probes", std::move(probes)},
          {"slots", recording.slot_count()},
          {"snapshots", recording.snapshots()},
          {"durable_snapshots", recording.durable_snapshots()},
          {"lost", recording.lost()},
          {"refused", recording.refused()},
          {"bytes", recording.bytes()},
          {"started_ns", recording.started_ns()}};
}

Json ToJson(const v1::StatusReply& status) {
  Json skipped = Json::array();
  for (const v1::Skipped& file : status.skipped()) {
    skipped.push_back({{"path", file.path()}, {"reason", file.reason()}});
  }
  return {
      {"daemon",
       {{"version", status.version()},
        {"pid", status.pid()},
        {"started_ns", status.started_ns()},
        {"cpu_seconds", JsonNumber(status.cpu_seconds())},
        {"rss_bytes", status.rss_bytes()},
        {"socket", status.socket()},
        {"clients", status.clients()},
        {"memory_bytes", status.memory_bytes()},
        {"memory_limit_bytes", status.memory_limit_bytes()},
        {"idle_timeout_s", JsonNumber(status.idle_timeout_s())}}},
      {"shm", {{"free_bytes", status.shm_free_bytes()}, {"total_bytes", status.shm_total_bytes()}}},
      {"sessions", ArrayOf(status.sessions())},
      {"recordings", ArrayOf(status.recordings())},
      {"skipped", std::move(skipped)}};
}

}  // namespace cgdebug::cli
