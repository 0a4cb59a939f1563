// record_sink.h: passes everything to the recorder.
#pragma once

#include "daemon/pipeline/sink.h"
#include "daemon/record/recorder.h"

namespace cgdebug::sinks {

class RecordSink final : public pipeline::Sink {
 public:
  // `recorder` outlives the sink.
  explicit RecordSink(pipeline::Recorder* recorder) : recorder_(recorder) {}

  void OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback& feedback) override {
    recorder_->OpenSlot(slot, feedback.consumed_before());
  }
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback&) override {
    recorder_->Consume(delivery);
  }
  void Lose(const pipeline::Gap& gap) override { recorder_->Lose(gap); }
  void CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                 pipeline::SlotFeedback&) override {
    recorder_->CloseSlot(slot, last_replay);
  }
  void Found(const pipeline::Finding& finding) override { recorder_->Found(finding); }
  void Flush() override { recorder_->Flush(); }
  void EndSession(const pipeline::SessionPtr& session, bool died) override {
    recorder_->EndSession(session, died);
  }

 private:
  pipeline::Recorder* recorder_;
};

}  // namespace cgdebug::sinks
