// print_sink.h: TensorPrint: one line per tensor, in the job's own terminal and the session's log.
#pragma once

#include <map>
#include <string>

#include "daemon/model/event_log.h"
#include "daemon/pipeline/sink.h"
#include "daemon/sinks/job_terminal.h"

namespace cgdebug::sinks {

// Every line is in the event log in any case. The producer learns how many lines there were and how
// many its terminal took.
class PrintSink final : public pipeline::Sink {
 public:
  // `events` outlives the sink.
  explicit PrintSink(pipeline::EventLog* events) : events_(events) {}

  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) override;
  void EndSession(const pipeline::SessionPtr& session, bool died) override;

 private:
  pipeline::EventLog* events_;
  std::map<pipeline::SessionPtr, JobTerminal> terminals_;
};

// The text of the line, without a newline at the end:
//   [cgdebug] r0 @1203 blk3.attn.out  f16[8,512,4096]  n=16.8M x∈[-41.2 |▁▂▅█▅▂▁▁| 39.8] μ=0.002
//   σ=1.31
//             [[0.31, ..., -1.5], ...]
// `payload` is null for a snapshot that has no values.
std::string RenderPrint(const pipeline::Snapshot& snapshot, const pipeline::PayloadPtr& payload);

}  // namespace cgdebug::sinks
