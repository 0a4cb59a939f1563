// to_recording.h: converts the daemon's model to what a recording holds.
#pragma once

#include "daemon/core/recording/types.h"
#include "daemon/pipeline/sink.h"

namespace cgdebug::pipeline {

// Ids are left for the writer to choose.
recording::Slot ToRecording(const SlotIdentity& slot);
// `comparison`: null if it was not compared.
recording::Snapshot ToRecording(const Snapshot& snapshot, const ComparisonPtr& comparison);
recording::Mark ToRecording(const Finding& finding);

}  // namespace cgdebug::pipeline
