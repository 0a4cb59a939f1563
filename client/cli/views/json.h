// json.h: the daemon's answers as JSON. Fields are only added, never renamed.
//
// protobuf writes 64-bit integers as strings; here counters are numbers.
#pragma once

#include "client/analysis/json_number.h"
#include "client/live/probe.h"
#include "proto/control.pb.h"

namespace cgdebug::cli {

Json ToJson(const v1::Counters& counters);
Json ToJson(const v1::Stats& stats);
Json ToJson(const v1::Session& session);
Json ToJson(const v1::GraphInfo& graph);
Json ToJson(const live::Probe& probe);
Json ToJson(const v1::Snapshot& snapshot);
Json ToJson(const v1::TailReply& event);  // with "event": its kind
Json ToJson(const v1::Recording& recording);
Json ToJson(const v1::StatusReply& status);

}  // namespace cgdebug::cli
