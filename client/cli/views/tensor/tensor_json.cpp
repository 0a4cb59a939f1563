#include "client/cli/views/tensor/tensor_json.h"

#include "client/analysis/source_rows.h"

namespace cgdebug::cli {

Json ToJson(const numerics::Stats& stats) { return analysis::StatsJson(stats); }

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
          {"thread", slot.thread},
          {"shard", slot.shard},
          {"part", slot.part},
          {"payload_bytes", snapshot.payload_bytes},
          {"stats", ToJson(tensor.stats)}};
}

}  // namespace cgdebug::cli
