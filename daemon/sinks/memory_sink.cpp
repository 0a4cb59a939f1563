#include "daemon/sinks/memory_sink.h"

namespace cgdebug::sinks {

void MemorySink::Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback&) {
  store_->Put(delivery.snapshot, delivery.payload);
}

void MemorySink::Found(const pipeline::Finding& finding) {
  store_->Pin(finding.slot, finding.replay, finding.serial);
}

void MemorySink::NotFinite(const pipeline::SlotPtr& row, std::uint64_t replay,
                           std::uint32_t iteration) {
  store_->PinRunOf(row, replay, iteration);
}

void MemorySink::ForgetSession(const pipeline::SessionPtr& session) {
  store_->ForgetSession(session);
}

void MemorySink::ForgetSlot(const pipeline::SlotPtr& slot) { store_->ForgetSlot(slot); }

}  // namespace cgdebug::sinks
