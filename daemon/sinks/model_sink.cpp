#include "daemon/sinks/model_sink.h"

#include "daemon/core/base/realtime.h"

namespace cgdebug::sinks {

void ModelSink::OpenSession(const pipeline::SessionPtr& session) {
  next_->OpenSession(session);
  events_->Add(session, pipeline::SessionChange{false});
}

void ModelSink::OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback& feedback) {
  next_->OpenSlot(slot, feedback);
}

void ModelSink::Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) {
  const pipeline::SnapshotPtr& snapshot = delivery.snapshot;
  if (!delivery.seen_before) events_->Add(snapshot->slot->session, snapshot);
  next_->Consume(delivery, feedback);
  registry_->SetLast(snapshot);
}

void ModelSink::Lose(const pipeline::Gap& gap) {
  next_->Lose(gap);
  if (gap.cause == layout::LossCause::kOnDevice) return;  // as the probe asked for
  events_->Add(gap.slot->session,
               pipeline::Loss{gap.slot, gap.count, gap.before_replay, ToText(gap.cause)});
}

void ModelSink::Found(const pipeline::Finding& finding) { next_->Found(finding); }

void ModelSink::Froze(const pipeline::RingFreeze& freeze) { next_->Froze(freeze); }

void ModelSink::CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                          pipeline::SlotFeedback& feedback) {
  next_->CloseSlot(slot, last_replay, feedback);
}

void ModelSink::EndSession(const pipeline::SessionPtr& session, bool died) {
  next_->EndSession(session, died);
  registry_->EndSession(session,
                        died ? pipeline::SessionState::kDied : pipeline::SessionState::kExited,
                        RealtimeNs());
  events_->Add(session, pipeline::SessionChange{true});
}

void ModelSink::ForgetSession(const pipeline::SessionPtr& session) {
  next_->ForgetSession(session);
  events_->ForgetSession(session);
  registry_->ForgetSession(session);
}

void ModelSink::ForgetSlot(const pipeline::SlotPtr& slot) {
  next_->ForgetSlot(slot);
  registry_->ForgetSlot(slot);
}

void ModelSink::Flush() { next_->Flush(); }

}  // namespace cgdebug::sinks
