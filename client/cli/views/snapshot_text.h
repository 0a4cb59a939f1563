// snapshot_text.h: tensors of the wire in the words of daemon/numerics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/numerics/stats.h"
#include "proto/control.pb.h"
#include "proto/layout/dtype.h"

namespace cgdebug::cli {

// kInvalid for a name that this version does not know.
layout::Dtype DtypeOf(const std::string& name);
std::vector<std::uint64_t> ShapeOf(const google::protobuf::RepeatedField<std::uint64_t>& shape);
numerics::Stats StatsOf(const v1::Stats& stats);
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
// The one line of a tensor; the type padded to `type_width`.
std::string TensorLine(const v1::Snapshot& snapshot, bool colour, std::size_t type_width);

// "off", "statistics", "values, one replay in 10, replays 5..30, where abs max > 1e4".
std::string ControlText(const v1::Control& control);

// Why a snapshot has no values.
inline constexpr const char* kOnlyStatistics =
    "only the statistics were kept (its action is TensorStats, it was set to statistics, or the "
    "daemon's memory limit was reached)";

// "blk3.attn", "blk3.attn#1" for its second call in one capture.
std::string ProbeText(const std::string& name, std::uint32_t invocation);
// With what tells it from other slots of its probe, unprintable characters and all: what to type.
std::string SelectorOf(const v1::FirstNonfinite& first);

}  // namespace cgdebug::cli
