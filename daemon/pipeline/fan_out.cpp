#include "daemon/pipeline/fan_out.h"

namespace cgdebug::pipeline {

void FanOut::OpenSession(const SessionPtr& session) {
  for (Sink* sink : sinks_) sink->OpenSession(session);
}

void FanOut::OpenSlot(const SlotPtr& slot, SlotFeedback& feedback) {
  for (Sink* sink : sinks_) sink->OpenSlot(slot, feedback);
}

void FanOut::Consume(const Delivery& delivery, SlotFeedback& feedback) {
  for (Sink* sink : sinks_) sink->Consume(delivery, feedback);
}

void FanOut::Lose(const Gap& gap) {
  for (Sink* sink : sinks_) sink->Lose(gap);
}

void FanOut::Found(const Finding& finding) {
  for (Sink* sink : sinks_) sink->Found(finding);
}

void FanOut::NotFinite(const SlotPtr& row, std::uint64_t replay, std::uint32_t iteration) {
  for (Sink* sink : sinks_) sink->NotFinite(row, replay, iteration);
}
void FanOut::Froze(const RingFreeze& freeze) {
  for (Sink* sink : sinks_) sink->Froze(freeze);
}

void FanOut::CloseSlot(const SlotPtr& slot, std::uint64_t last_replay, SlotFeedback& feedback) {
  for (Sink* sink : sinks_) sink->CloseSlot(slot, last_replay, feedback);
}

void FanOut::NotSeen(const SessionPtr& session, const layout::NotSeen& not_seen) {
  for (Sink* sink : sinks_) sink->NotSeen(session, not_seen);
}

void FanOut::EndSession(const SessionPtr& session, bool died) {
  for (Sink* sink : sinks_) sink->EndSession(session, died);
}

void FanOut::ForgetSession(const SessionPtr& session) {
  for (Sink* sink : sinks_) sink->ForgetSession(session);
}

void FanOut::ForgetSlot(const SlotPtr& slot) {
  for (Sink* sink : sinks_) sink->ForgetSlot(slot);
}

void FanOut::Flush() {
  for (Sink* sink : sinks_) sink->Flush();
}

void FanOut::Tick() {
  for (Sink* sink : sinks_) sink->Tick();
}

}  // namespace cgdebug::pipeline
