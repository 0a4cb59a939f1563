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

// "cgdebug-cli ops '3f2a91c0@g:bs=8@1204'": shows the op log of a live job that has the row `slot`.
// `replay`: 0 for the newest.
std::string OpsCommandOf(const std::string& session_key, const source::Slot& slot,
                         std::uint64_t replay);

}  // namespace cgdebug::cli
