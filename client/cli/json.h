// json.h: the daemon's answers as JSON. Fields are only added, never renamed.
//
// nlohmann writes NaN as null and protobuf writes 64-bit integers as strings; here counters are
// numbers and what is not finite is "NaN", "Infinity" or "-Infinity".
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "proto/control.pb.h"

namespace cgdebug::cli {

using Json = nlohmann::ordered_json;

Json JsonNumber(double value);

Json ToJson(const v1::Counters& counters);
Json ToJson(const v1::Stats& stats);
Json ToJson(const v1::Session& session);
Json ToJson(const v1::ProbeInfo& probe);
Json ToJson(const v1::Verdict& verdict);
Json ToJson(const v1::Snapshot& snapshot);
Json ToJson(const v1::TailReply& event);  // with "event": its kind
Json ToJson(const v1::StatusReply& status);

// One line, or indented for people. Bytes that are no UTF-8 are replaced, never an exception.
std::string Dump(const Json& json, bool indented);

}  // namespace cgdebug::cli
