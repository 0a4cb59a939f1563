#include "daemon/record/to_recording.h"

#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::pipeline {
namespace {

recording::MarkKind KindOf(layout::FindingKind kind) {
  switch (kind) {
    case layout::FindingKind::kNan:
      return recording::MarkKind::kFirstNan;
    case layout::FindingKind::kInf:
      return recording::MarkKind::kFirstInf;
    case layout::FindingKind::kReplica:
      return recording::MarkKind::kFirstUnequal;
    case layout::FindingKind::kMismatch:
      break;
  }
  return recording::MarkKind::kFirstMismatch;
}

}  // namespace

recording::Slot ToRecording(const SlotIdentity& slot) {
  recording::Slot to;
  to.probe = slot.probe;
  to.site = slot.site;
  to.shard = slot.shard;
  to.part = slot.part;
  to.op = slot.op;
  to.details = slot.details;
  to.device = slot.device;
  to.dtype = slot.dtype;
  to.shape = slot.shape;
  to.payload_bytes = numerics::PayloadBytes(slot.dtype, slot.shape).value_or(0);
  to.graph_id = slot.registration.graph_id;
  to.invocation = slot.registration.invocation;
  to.order = slot.registration.order;
  to.index = slot.index;
  to.generation = slot.generation;
  to.graph_label = slot.graph_label;
  to.in_body = slot.IsInBody();
  to.thread = slot.registration.thread;
  return to;
}

recording::Snapshot ToRecording(const Snapshot& snapshot, const ComparisonPtr& comparison) {
  recording::Snapshot to;
  to.ordinal = snapshot.ordinal;
  to.replay = snapshot.replay;
  to.iteration = snapshot.iteration;
  to.serial = snapshot.serial;
  to.step = snapshot.step;
  to.timestamp_ns = snapshot.timestamp_ns;
  to.unchanged = !snapshot.changed;
  to.stats = snapshot.stats;
  if (comparison != nullptr && comparison->ok()) {
    const numerics::CompareResult& compared = **comparison;
    to.compared = true;
    to.comparison = {compared.mismatched, compared.max_abs.value, compared.max_rel.value};
  }
  return to;
}

recording::Mark ToRecording(const Finding& finding) {
  recording::Mark to;
  to.kind = KindOf(finding.kind);
  to.replay = finding.replay;
  to.serial = finding.serial;
  to.step = finding.step;
  to.count = finding.count;
  to.text = finding.text;
  to.timestamp_ns = finding.timestamp_ns;
  return to;
}

}  // namespace cgdebug::pipeline
