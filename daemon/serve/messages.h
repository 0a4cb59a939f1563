// messages.h: the daemon's model as what clients are told: structs of daemon/core/answers, and
// messages of proto/control.proto.
#pragma once

#include <string>

#include "daemon/core/answers/session.h"
#include "daemon/core/base/result.h"
#include "daemon/model/control_queue.h"
#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/record/recorder.h"
#include "daemon/serve/answer.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

void SetError(Answer* answer, v1::Error::Code code, std::string message);

// `registry` names the graphs.
answers::Session SessionOf(const pipeline::SessionRecord& record,
                           const pipeline::Registry& registry);
answers::Probe ProbeOf(const pipeline::SlotRecord& record, const pipeline::Registry& registry,
                       bool with_last_stats = true);
answers::Kept KeptOf(const pipeline::StoredSnapshot& stored);
void Fill(const pipeline::Snapshot& snapshot, const pipeline::Registry& registry,
          v1::Snapshot* message);

// Converts a message into a change; the caller fills in `slot`.
// Fails: an unknown mode, or a condition or range that makes no sense.
Result<pipeline::ControlChange> ToChange(const v1::SetRequest& request, std::int64_t now_ns);

// `registry` has the numbers of a session that began or ended. Rows become one page.
void Fill(const pipeline::Event& event, const pipeline::Registry& registry, v1::TailReply* message);

}  // namespace cgdebug::serve
