#include "client/live/messages.h"

#include <string>
#include <utility>

#include "daemon/core/wire/message_fields.h"

namespace cgdebug::live {
namespace {

// kInvalid for a name that this version does not know.
layout::Dtype DtypeOf(const std::string& name) {
  const layout::DtypeInfo* info = layout::FindDtype(std::string_view(name));
  return info == nullptr ? layout::Dtype::kInvalid : info->dtype;
}

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

numerics::Stats StatsOf(const v1::Stats& stats) { return FieldsOf<numerics::Stats>(stats); }

Probe ProbeOf(const v1::ProbeInfo& message) {
  Probe probe;
  probe.session = message.session();
  probe.slot = CommonSlotOf(message);
  probe.slot.probe = message.name();
  probe.slot.site = message.site();
  probe.slot.op = message.op();
  probe.probe_id = message.probe_id();
  probe.lane = static_cast<layout::Lane>(message.lane());
  probe.lane_reason = message.lane_reason();
  probe.policy = static_cast<layout::Policy>(message.policy());
  for (const int action : message.actions()) {
    probe.actions.push_back(layout::NameAt(layout::kActionNames, static_cast<std::size_t>(action)));
  }
  probe.capacity = message.capacity();
  probe.replay = message.replay();
  probe.last_timestamp_ns = message.last_timestamp_ns();
  probe.retired = message.retired();
  probe.counters = CountersOf(message.counters());
  probe.first_nan = FirstOf(message.first_nan());
  probe.first_inf = FirstOf(message.first_inf());
  if (message.has_verdict()) probe.verdict = FieldsOf<layout::Verdict>(message.verdict());
  if (message.has_control()) probe.control = ControlOf(message.control());
  if (message.has_last_stats()) probe.last_stats = StatsOf(message.last_stats());
  return probe;
}

FirstNonfinite FirstOf(const v1::FirstNonfinite& message) {
  return {.probe = message.probe(),
          .invocation = message.invocation(),
          .graph = message.graph(),
          .graph_id = message.graph_id(),
          .shape = {message.shape().begin(), message.shape().end()},
          .slot = message.slot(),
          .qualifier = message.qualifier(),
          .replay = message.replay(),
          .serial = message.serial(),
          .step = message.step(),
          .count = message.count()};
}

layout::SlotControl ControlOf(const v1::Control& control) {
  return FieldsOf<layout::SlotControl>(control);
}

layout::Counters CountersOf(const v1::Counters& counters) {
  return FieldsOf<layout::Counters>(counters);
}

std::string LaneName(v1::ProbeInfo::Lane lane) {
  return std::string(layout::NameOf(static_cast<layout::Lane>(lane)));
}

Result<std::vector<Probe>> ListProbes(client::Client& client, const std::string& session,
                                      const std::vector<std::string>& globs) {
  v1::ProbesRequest request;
  request.set_session(session);
  for (const std::string& glob : globs) request.add_probes(glob);
  const Result<v1::ProbesReply> reply = client.Probes(request);
  if (!reply.ok()) return reply.error();
  std::vector<Probe> probes;
  for (const v1::ProbeInfo& probe : reply->probes()) probes.push_back(ProbeOf(probe));
  return probes;
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
