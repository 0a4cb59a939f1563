#include "client/cli/views/tensor_json.h"

#include <fmt/format.h>

#include <string_view>

namespace cgdebug::cli {

Json ToJson(const numerics::Stats& stats) {
  Json json;
  numerics::Stats::ForEachNumber([&](const layout::Field& field, auto member) {
    json[field.name] = FieldJson(stats.*member);
    if (std::string_view(field.name) != "neg_inf") return;
    json["inf"] = stats.pos_inf + stats.neg_inf;
    json["nonfinite"] = stats.nonfinite();
  });
  json["xor_hash"] = nullptr;
  if (stats.has_hash) json["xor_hash"] = fmt::format("{:016x}", stats.hash);
  json["first_nonfinite"] = nullptr;
  if (stats.has_nonfinite) {
    json["first_nonfinite"] = {{"index", stats.first_nonfinite},
                               {"value", JsonNumber(stats.first_nonfinite_value)}};
  }
  json["histogram"] = stats.histogram;
  return json;
}

Json ToJson(const source::Tensor& tensor) {
  const source::Slot& slot = tensor.slot;
  const source::Snapshot& snapshot = tensor.snapshot;
  return {{"session", tensor.session_key},
          {"session_label", slot.session},
          {"rank", slot.rank},
          {"probe", slot.probe},
          {"slot", slot.order},
          {"replay", snapshot.key.replay},
          {"iteration", snapshot.key.iteration},
          {"serial", snapshot.serial},
          {"graph", slot.graph},
          {"graph_id", slot.graph_id},
          {"invocation", slot.invocation},
          {"dtype", slot.dtype_name},
          {"shape", slot.shape},
          {"device", slot.device},
          {"timestamp_ns", snapshot.timestamp_ns},
          {"step", snapshot.step},
          {"shard", slot.shard},
          {"payload_bytes", snapshot.payload_bytes},
          {"stats", ToJson(tensor.stats)}};
}

}  // namespace cgdebug::cli
