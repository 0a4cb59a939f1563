// messages.h: the daemon's model as messages of proto/control.proto.
#pragma once

#include <string>

#include "daemon/core/base/result.h"
#include "daemon/model/control_queue.h"
#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/record/recorder.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

void SetError(v1::Response* response, v1::Error::Code code, std::string message);

// `registry` names the graphs.
void Fill(const pipeline::SessionRecord& record, const pipeline::Registry& registry,
          v1::Session* message);
void Fill(const pipeline::SlotRecord& record, const pipeline::Registry& registry,
          v1::ProbeInfo* message, bool with_last_stats = true);
void Fill(const pipeline::Snapshot& snapshot, const pipeline::Registry& registry,
          v1::Snapshot* message);
void Fill(const pipeline::StoredSnapshot& stored, v1::HistoryReply::Entry* message);

// Converts a message into a change; the caller fills in `slot`.
// Fails: an unknown mode, or a condition or range that makes no sense.
Result<pipeline::ControlChange> ToChange(const v1::SetRequest& request, std::int64_t now_ns);

// `registry` has the numbers of a session that began or ended. Rows become one page.
void Fill(const pipeline::Event& event, const pipeline::Registry& registry, v1::TailReply* message);

}  // namespace cgdebug::serve
