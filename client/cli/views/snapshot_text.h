// snapshot_text.h: calls of probes, as the daemon lists them, in words.
#pragma once

#include <cstdint>
#include <string>

#include "client/live/probe.h"

namespace cgdebug::cli {

// "off", "statistics", "values, one replay in 10, replays 5..30, where abs max > 1e4".
std::string ControlText(const layout::SlotControl& control);

// "blk3.attn", "blk3.attn#1" for its second call in one capture.
std::string ProbeText(const std::string& name, std::uint32_t invocation);

}  // namespace cgdebug::cli
