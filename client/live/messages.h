// messages.h: converts the daemon's answers to the model that recordings and files share.
#pragma once

#include <string>

#include "cgdebug/client.h"
#include "client/live/probe.h"
#include "client/source/source.h"
#include "daemon/core/numerics/stats.h"
#include "proto/control.pb.h"
#include "proto/layout/dtype.h"

namespace cgdebug::live {

numerics::Stats StatsOf(const v1::Stats& stats);
Probe ProbeOf(const v1::ProbeInfo& probe);
FirstNonfinite FirstOf(const v1::FirstNonfinite& first);
layout::SlotControl ControlOf(const v1::Control& control);
layout::Counters CountersOf(const v1::Counters& counters);
// "direct", "callback" or "host".
std::string LaneName(v1::ProbeInfo::Lane lane);
// Without values.
source::Tensor TensorOf(const v1::Snapshot& snapshot);
source::Tensor TensorOf(client::Tensor tensor);

void FillWhich(const WhichSlots& which, v1::Which* message);

}  // namespace cgdebug::live
