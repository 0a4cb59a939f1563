#include "client/live/messages.h"

#include <string>
#include <utility>

#include "daemon/core/wire/message_fields.h"

namespace cgdebug::live {
namespace {

// The fields that both messages name alike.
template <typename Message>
source::Slot CommonSlotOf(const Message& message) {
  source::Slot slot;
  slot.session = message.session_label();
  slot.device = message.device();
  slot.shard = message.shard();
  slot.dtype_name = message.dtype();
  slot.dtype = DtypeOf(message.dtype());
  slot.shape.assign(message.shape().begin(), message.shape().end());
  slot.payload_bytes = message.payload_bytes();
  slot.rank = message.rank();
  slot.graph_id = message.graph_id();
  slot.invocation = message.invocation();
  slot.order = message.slot();
  slot.graph = message.graph();
  slot.qualifier = message.qualifier();
  return slot;
}

}  // namespace

layout::Dtype DtypeOf(const std::string& name) {
  const layout::DtypeInfo* info = layout::FindDtype(std::string_view(name));
  return info == nullptr ? layout::Dtype::kInvalid : info->dtype;
}

numerics::Stats StatsOf(const v1::Stats& stats) { return FieldsOf<numerics::Stats>(stats); }

source::Slot SlotOf(const v1::ProbeInfo& probe) {
  source::Slot slot = CommonSlotOf(probe);
  slot.probe = probe.name();
  slot.site = probe.site();
  return slot;
}

source::Tensor TensorOf(const v1::Snapshot& snapshot) {
  source::Tensor tensor;
  tensor.session_key = snapshot.session();
  tensor.slot = CommonSlotOf(snapshot);
  tensor.slot.probe = snapshot.probe();
  tensor.snapshot.key = {snapshot.replay(), snapshot.ordinal()};
  tensor.snapshot.serial = snapshot.serial();
  tensor.snapshot.step = snapshot.step();
  tensor.snapshot.timestamp_ns = snapshot.timestamp_ns();
  tensor.snapshot.payload_bytes = snapshot.payload_bytes();
  tensor.stats = StatsOf(snapshot.stats());
  return tensor;
}

source::Tensor TensorOf(client::Tensor tensor) {
  source::Tensor result = TensorOf(tensor.reply.snapshot());
  result.snapshot.has_values = !tensor.reply.payload_dropped();
  result.payload = std::move(tensor.payload);
  return result;
}

void FillWhich(const WhichSlots& which, v1::Which* message) {
  message->set_graph(which.graph);
  if (!which.shape) return;
  message->mutable_shape()->mutable_sizes()->Assign(which.shape->begin(), which.shape->end());
}

}  // namespace cgdebug::live
