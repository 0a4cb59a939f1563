#include "client/cli/views/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <type_traits>

#include "client/cli/views/tensor_json.h"
#include "client/live/messages.h"
#include "client/live/sessions.h"
#include "daemon/core/recording/types.h"
#include "daemon/core/wire/message_fields.h"

namespace cgdebug::cli {
namespace {

template <typename Repeated>
Json Array(const Repeated& values) {
  Json array = Json::array();
  for (const auto& value : values) array.push_back(value);
  return array;
}

Json FirstJson(const live::FirstNonfinite& first) {
  if (first.replay == 0) return nullptr;
  return {{"probe", first.probe},       {"invocation", first.invocation}, {"graph", first.graph},
          {"graph_id", first.graph_id}, {"shape", first.shape},           {"slot", first.slot},
          {"replay", first.replay},     {"serial", first.serial},         {"step", first.step},
          {"count", first.count}};
}

// Adds the slot that an event is about. A client's own loss is not about a slot.
void AddSlot(const v1::Slot& slot, Json* json) {
  json->update({{"graph", slot.graph()},
                {"graph_id", slot.graph_id()},
                {"invocation", slot.invocation()},
                {"shape", Array(slot.shape())},
                {"slot", slot.slot()}});
}

// The fields of a struct that lists them, in that order.
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

Json ControlJson(const layout::SlotControl& control) {
  return {{"mode", NameOf(control.mode)},
          {"every", control.every},
          {"from", control.from},
          {"until", control.until},
          {"on", NameOf(control.trigger)},
          {"threshold", JsonNumber(control.threshold)},
          {"expires_ns", control.expires_ns}};
}

Json VerdictJson(const layout::Verdict& verdict) {
  return {{"state", NameOf(verdict.state)},
          {"compared", verdict.compared},
          {"mismatched", verdict.mismatched},
          {"lost", verdict.lost},
          {"first_failed_replay", verdict.first_failed_replay},
          {"text", verdict.text}};
}

}  // namespace

Json ToJson(const v1::Counters& counters) { return FieldsJson(live::CountersOf(counters)); }

Json ToJson(const v1::Stats& stats) { return ToJson(live::StatsOf(stats)); }

Json ToJson(const v1::Session& session) {
  Json lanes = Json::array();
  for (const v1::LaneUse& use : session.lanes()) {
    lanes.push_back(
        {{"lane", live::LaneName(use.lane())}, {"reason", use.reason()}, {"slots", use.slots()}});
  }
  Json json = {{"key", session.key()}};
  json.update(FieldsJson(FieldsOf<recording::Session>(session)));
  json.erase("id");
  json.update({{"ended_ns", session.ended_ns()},
               {"state", live::StateText(session.state())},
               {"probes", session.probe_count()},
               {"slots", session.slot_count()},
               {"lanes", std::move(lanes)},
               {"replay", session.replay()},
               {"step", session.step()},
               {"shm_bytes", session.shm_bytes()},
               {"counters", ToJson(session.counters())},
               {"nonfinite_probes", session.nonfinite_probes()},
               {"failed_probes", session.failed_probes()},
               {"first_nan", FirstJson(live::FirstOf(session.first_nan()))},
               {"first_inf", FirstJson(live::FirstOf(session.first_inf()))}});
  return json;
}

Json ToJson(const v1::GraphInfo& graph) {
  std::string state = v1::GraphInfo::State_Name(graph.state());
  std::ranges::transform(state, state.begin(), [](unsigned char c) { return std::tolower(c); });
  return {{"order", graph.order()},
          {"graph", graph.graph()},
          {"graph_id", graph.graph_id()},
          {"state", state},
          {"nodes", graph.has_nodes() ? Json(graph.nodes()) : Json()},
          {"replays", graph.has_replays() ? Json(graph.replays()) : Json()},
          {"probes", graph.probes()},
          {"probe_bytes", graph.probe_bytes()},
          {"alike", graph.alike()},
          {"alike_gone", graph.alike_gone()},
          {"begun_ns", graph.begun_ns()},
          {"ended_ns", graph.ended_ns()},
          {"pool", std::vector<std::uint64_t>(graph.pool().begin(), graph.pool().end())},
          {"stack", graph.stack()}};
}

Json ToJson(const live::Probe& probe) {
  const source::Slot& slot = probe.slot;
  Json json = {{"session", probe.session},
               {"session_label", slot.session},
               {"rank", slot.rank},
               {"name", slot.probe},
               {"slot", slot.order},
               {"probe_id", probe.probe_id},
               {"graph", slot.graph},
               {"graph_id", slot.graph_id},
               {"invocation", slot.invocation},
               {"dtype", slot.dtype_name},
               {"shape", slot.shape},
               {"device", slot.device},
               {"lane", NameOf(probe.lane)},
               {"lane_reason", probe.lane_reason},
               {"policy", NameOf(probe.policy)},
               {"actions", probe.actions},
               {"capacity", probe.capacity},
               {"payload_bytes", slot.payload_bytes},
               {"replay", probe.replay},
               {"last_timestamp_ns", probe.last_timestamp_ns},
               {"site", slot.site},
               {"shard", slot.shard},
               {"op", slot.op},
               {"retired", probe.retired},
               {"counters", FieldsJson(probe.counters)}};
  json["first_nan"] = FirstJson(probe.first_nan);
  json["first_inf"] = FirstJson(probe.first_inf);
  json["verdict"] = probe.verdict ? VerdictJson(*probe.verdict) : Json(nullptr);
  json["control"] = probe.control ? ControlJson(*probe.control) : Json(nullptr);
  json["last_stats"] = probe.last_stats ? ToJson(*probe.last_stats) : Json(nullptr);
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
