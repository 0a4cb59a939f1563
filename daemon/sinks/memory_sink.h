// memory_sink.h: keeps the last values.
#pragma once

#include "daemon/model/snapshot_store.h"
#include "daemon/pipeline/sink.h"

namespace cgdebug::sinks {

// Also keeps snapshots that an earlier daemon consumed, so that a new daemon has values at once.
class MemorySink final : public pipeline::Sink {
 public:
  // `store` outlives the sink.
  explicit MemorySink(pipeline::SnapshotStore* store) : store_(store) {}

  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) override;
  // Keeps that tensor and the few before it, so that it can still be looked at later.
  void Found(const pipeline::Finding& finding) override;
  void NotFinite(const pipeline::SlotPtr& row, std::uint64_t replay,
                 std::uint32_t iteration) override;
  void ForgetSession(const pipeline::SessionPtr& session) override;
  void ForgetSlot(const pipeline::SlotPtr& slot) override;

 private:
  pipeline::SnapshotStore* store_;
};

}  // namespace cgdebug::sinks
