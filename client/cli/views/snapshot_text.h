// snapshot_text.h: calls of probes, as the daemon lists them, in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/control.pb.h"
#include "proto/layout/dtype.h"

namespace cgdebug::cli {

std::vector<std::uint64_t> ShapeOf(const google::protobuf::RepeatedField<std::uint64_t>& shape);
std::uint64_t Nonfinite(const v1::Stats& stats);

// "direct", "callback" or "host".
std::string LaneName(v1::ProbeInfo::Lane lane);
// "overwrite" or "wait".
std::string PolicyName(v1::ProbeInfo::Policy policy);
// "print", "record", ...
std::vector<std::string_view> ActionsOf(const v1::ProbeInfo& probe);

// What was lost of a slot or session, all causes.
std::uint64_t Lost(const v1::Counters& counters);

// "f16[8,512]", with a dtype that this version does not know spelled as the daemon did.
std::string TypeText(const std::string& dtype,
                     const google::protobuf::RepeatedField<std::uint64_t>& shape);
// "off", "statistics", "values, one replay in 10, replays 5..30, where abs max > 1e4".
std::string ControlText(const v1::Control& control);

// "blk3.attn", "blk3.attn#1" for its second call in one capture.
std::string ProbeText(const std::string& name, std::uint32_t invocation);
// With what tells it from other slots of its probe, unprintable characters and all: what to type.
std::string SelectorOf(const v1::FirstNonfinite& first);

}  // namespace cgdebug::cli
