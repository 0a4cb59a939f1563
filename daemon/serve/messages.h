// messages.h: the daemon's model as messages of proto/control.proto.
#pragma once

#include "daemon/pipeline/event_log.h"
#include "daemon/pipeline/registry.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

void Fill(const pipeline::Counters& counters, v1::Counters* message);
void Fill(const numerics::Stats& stats, v1::Stats* message);
void Fill(const pipeline::SessionRecord& record, v1::Session* message);
void Fill(const pipeline::SlotRecord& record, v1::ProbeInfo* message);
void Fill(const pipeline::Snapshot& snapshot, v1::Snapshot* message);

// `registry` has the numbers of a session that began or ended.
void Fill(const pipeline::Event& event, const pipeline::Registry& registry, v1::TailReply* message);

}  // namespace cgdebug::serve
