// fan_out.h: one sink that passes everything to several.
#pragma once

#include <utility>
#include <vector>

#include "daemon/pipeline/sink.h"

namespace cgdebug::pipeline {

// Passes everything to each of its sinks, in the order in which they are given.
class FanOut final : public Sink {
 public:
  // The sinks outlive it.
  explicit FanOut(std::vector<Sink*> sinks) : sinks_(std::move(sinks)) {}

  void OpenSession(const SessionPtr& session) override;
  void OpenSlot(const SlotPtr& slot, SlotFeedback& feedback) override;
  void Consume(const Delivery& delivery, SlotFeedback& feedback) override;
  void Lose(const Gap& gap) override;
  void Found(const Finding& finding) override;
  void NotFinite(const SlotPtr& row, std::uint64_t replay, std::uint32_t iteration) override;
  void Froze(const RingFreeze& freeze) override;
  void CloseSlot(const SlotPtr& slot, std::uint64_t last_replay, SlotFeedback& feedback) override;
  void NotSeen(const SessionPtr& session, const layout::NotSeen& not_seen) override;
  void EndSession(const SessionPtr& session, bool died) override;
  void ForgetSession(const SessionPtr& session) override;
  void ForgetSlot(const SlotPtr& slot) override;
  void Flush() override;
  void Tick() override;

 private:
  std::vector<Sink*> sinks_;
};

}  // namespace cgdebug::pipeline
