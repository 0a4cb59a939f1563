#include "client/cli/views/json.h"

namespace cgdebug::cli {
namespace {

// The slot that an event is about. A client's own loss is not about a slot.
Json SlotJson(const source::Slot& slot) {
  if (slot.probe.empty()) return Json::object();
  return {{"graph", slot.graph},
          {"graph_id", slot.graph_id},
          {"invocation", slot.invocation},
          {"shape", slot.shape},
          {"slot", slot.order}};
}

}  // namespace

Json ToJson(const live::Event& event) {
  const source::Tensor& tensor = event.tensor;
  Json json = {{"event", NameOf(event.kind)}};
  if (event.kind == live::EventKind::kSnapshot) json.update(ToJson(tensor));
  if (event.has_session()) json.update(FieldsJson(event.session));
  const bool is_loss = event.kind == live::EventKind::kLoss;
  const bool is_said =
      event.kind == live::EventKind::kPrint || event.kind == live::EventKind::kCompareFailed ||
      event.kind == live::EventKind::kUnequal || event.kind == live::EventKind::kFrozen;
  if (!is_loss && !is_said) return json;
  json["session"] = tensor.session_key;
  json["rank"] = tensor.slot.rank;
  json["probe"] = tensor.slot.probe;
  if (is_loss) json["count"] = event.count;
  json[is_loss ? "before_replay" : "replay"] = tensor.snapshot.key.replay;
  if (is_said) json["iteration"] = tensor.snapshot.key.iteration;
  if (is_said) json["step"] = tensor.snapshot.step;
  if (is_said) json["thread"] = tensor.slot.thread;
  json[is_loss ? "cause" : "text"] = event.text;
  json.update(SlotJson(tensor.slot));
  return json;
}

Json ToJson(const live::Status& status) {
  return {{"daemon", FieldsJson(status)},
          {"shm", {{"free_bytes", status.shm_free_bytes}, {"total_bytes", status.shm_total_bytes}}},
          {"sessions", FieldJson(status.sessions)},
          {"recordings", FieldJson(status.recordings)},
          {"skipped", FieldJson(status.skipped)}};
}

}  // namespace cgdebug::cli
